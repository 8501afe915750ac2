"""The text that bench/language_model.py trains on: files and folders, WikiText's own files, and tokens out of them.

The same rules as examples/gpt: the last twentieth of a file, from the beginning of a line, is for validation; a folder with
wiki.train.tokens is WikiText, whose files are read as they are.
"""

import dataclasses
import gzip
import hashlib
import lzma
import pathlib

DEFAULT = pathlib.Path("/usr/share/games/fortunes")
PACKAGE = "fortunes"
LICENCE = "BSD, as /usr/share/doc/fortunes/copyright of the Debian package has it"
VALIDATION_PART = 20
OPENERS = {".gz": gzip.open, ".xz": lzma.open}
BYTES = 256  # the vocabulary without a byte-pair encoding


class BadInput(ValueError):
    """One sentence: the argument, what was given, what is allowed."""


@dataclasses.dataclass
class Corpus:
    train: bytes
    validation: bytes
    source: str
    licence: str = ""

    def description(self):
        """What the context of a file says of the text."""
        whole = hashlib.sha256(self.train)
        whole.update(self.validation)
        told = {"source": self.source, "train_bytes": len(self.train), "validation_bytes": len(self.validation),
                "sha256": whole.hexdigest()}
        return told | ({"licence": self.licence} if self.licence else {})


def contents(path):
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as file:
            return file.read()
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise BadInput(f"--data was {path}, which cannot be read ({error}); allowed are files and folders of text.") from error


def split(text):
    """(for training, for validation)"""
    newline = text.find(b"\n", len(text) - len(text) // VALIDATION_PART)
    cut = len(text) if newline < 0 else newline + 1
    return text[:cut], text[cut:]


def of_folder(folder):
    """Pairs of a folder: WikiText's files, or each file by name, but for links and for what has a zero byte, which is no text."""
    if (folder / "wiki.train.tokens").exists():
        return [(contents(folder / "wiki.train.tokens"), contents(folder / "wiki.valid.tokens"))]
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [split(text) for text in map(contents, files) if b"\0" not in text]


def read_corpus(paths):
    """The texts of all paths, one after the other; without paths the default one."""
    if not paths and not DEFAULT.exists():
        raise BadInput(f"--data was not given, and the default text {DEFAULT} is not there; install the Debian package {PACKAGE}, "
                       "or name a file or a folder.")
    pairs = []
    for path in map(pathlib.Path, paths or [DEFAULT]):
        pairs += of_folder(path) if path.is_dir() else [split(contents(path))]
    train, validation = (b"".join(parts) for parts in zip(*pairs)) if pairs else (b"", b"")
    source = ", ".join(map(str, paths or [DEFAULT]))
    if not train:
        raise BadInput(f"--data was {source}, which holds no text; at least one file with text is needed.")
    is_default = pathlib.Path(source).name == DEFAULT.name  # carried to another machine, too
    return Corpus(train, validation, source, LICENCE if is_default else "")


def encoder(bpe):
    """(tokens of bytes as a list of integers, size of the vocabulary): the bytes themselves, or GPT-2's byte-pair encoding from
    a folder with its vocab.json and merges.txt, which the package tokenizers reads."""
    if bpe is None:
        return list, BYTES
    missing = [name for name in ("vocab.json", "merges.txt") if not (bpe / name).exists()]
    if missing:
        raise BadInput(f"--bpe was {bpe}, which has no {' and no '.join(missing)}; it must be a folder with both.")
    try:
        from tokenizers import ByteLevelBPETokenizer
    except ImportError as error:
        raise BadInput(f"--bpe was {bpe}, but the package tokenizers is not installed; install it, or leave --bpe out.") from error
    tokenizer = ByteLevelBPETokenizer(str(bpe / "vocab.json"), str(bpe / "merges.txt"))
    return lambda text: tokenizer.encode(text.decode("utf-8", "replace")).ids, tokenizer.get_vocab_size()


def tokens_of(corpus, seqlen, bpe=None):
    """(training tokens, validation tokens, size of the vocabulary); both have at least one window of seqlen + 1 tokens."""
    encode, vocabulary = encoder(bpe)
    parts = {}
    for name in ("train", "validation"):
        text = getattr(corpus, name)
        parts[name] = text if bpe is None else encode(text)
        if len(parts[name]) <= seqlen:
            raise BadInput(f"--data was {corpus.source}, whose text for {'training' if name == 'train' else name} has "
                           f"{len(parts[name])} tokens; with --seqlen {seqlen} it must have {seqlen + 1} or more.")
    return parts["train"], parts["validation"], vocabulary
