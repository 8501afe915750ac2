"""bench/language_model.py on a tiny model: losses by two attentions, what is resumed, what is refused."""

import gzip
import json
import math
import pathlib
import random
import subprocess
import sys

import pytest

pytest.importorskip("torch")
BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
import language_model
import lm_model
import lm_tables
import lm_text
import lm_training
import torch

ATTENTIONS = ("pytorch-math", "flashomp-openmp")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Words, so that a few steps learn something."""
    words = random.Random(3).choices(["attention", "is", "all", "you", "need", "\n"], k=2000)
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(words))
    return path


def run(out, text, *words):
    arguments = language_model.parse_arguments(["--dry-run", "--device", "cpu", "--threads", "1", "--out", str(out), "--data",
                                                str(text), *words])
    return language_model.run(arguments)


def refused(out, text, *words):
    with pytest.raises(lm_text.BadInput) as error:
        run(out, text, *words)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture(scope="module")
def recorded(text, tmp_path_factory):
    """(file, rows) of all attentions of the CPU, as `--dry-run` has them."""
    out = tmp_path_factory.mktemp("out") / "new" / "x-language-model-pytorch.json"
    return out, run(out, text)


def test_a_dry_run_has_a_complete_row_for_every_configuration(recorded):
    out, rows = recorded
    data = json.loads(out.read_text())
    assert data["benchmarks"] == rows and "stopped" not in data["context"]
    assert {"date", "cpu", "num_cpus", "flashomp_commit", "flashomp_flags", "torch", "text", "command"} <= data["context"].keys()
    assert [tuple(row["configuration"][name] for name in ("checkpoint", "dtype", "attention")) for row in rows] == [
        (checkpoint, dtype, attention) for checkpoint in ("none", "layer") for dtype in ("bfloat16", "float32")
        for attention in language_model.OF_DEVICE["cpu"]]
    for row in rows:
        assert "error_message" not in row, row
        assert row["repetitions"] == 3 and row["real_time"] > 0 and row["tokens_per_second"] > 0
        assert math.isclose(row["perplexity"], 2 ** row["bits_per_token"])
        assert [one["step"] for one in row["evaluations"]] == [2, 3] and row["peak_rss_bytes"] >= row["rss_before_bytes"] > 0
    served = [row["ran"] for row in rows if row["configuration"]["attention"] == lm_model.ENABLED]
    assert all(ran["forward"] > 0 and ran["backward"] > 0 and ran["pytorch"] == {} for ran in served)
    ours = [row["ran"] for row in rows if row["configuration"]["attention"] == "flashomp-openmp"]
    assert all(ran[direction].startswith("openmp:host") for ran in ours for direction in ("forward", "backward"))


def test_attentions_agree_and_checkpoints_change_no_bit(recorded):
    _, rows = recorded
    standard = lm_tables.standard_of(rows)
    for row in rows:
        dtype = row["configuration"]["dtype"]
        assert lm_tables.largest_difference(row, standard(row)) < (1e-5 if dtype == "float32" else 5e-3)
        assert lm_tables.same_bits_text(row, rows) in ("", "same bits")
    assert len({row["losses_digest"] for row in rows}) > 2  # it tells dtypes and attentions apart
    words = list(lm_tables.verdicts(rows))
    assert len(words) == 2 and all("within the limit" in one for one in words)


def test_the_tables_say_when_a_perplexity_is_over_its_limit(recorded):
    rows = json.loads(json.dumps(recorded[1]))
    row = next(row for row in rows if row["configuration"]["attention"] == "flashomp-openmp"
               and row["configuration"]["dtype"] == "float32")
    row["perplexity"] *= 1.002
    assert sum("**over** the limit" in one for one in lm_tables.verdicts(rows)) == 1
    assert any("+0.2" in line for line in lm_tables.cost_table(rows))


def test_steps_learn_and_the_seed_decides_the_batches(text):
    configuration = {"vocabulary": 256, "seqlen": 24, "layers": 1, "heads": 2, "dim": 32, "batch": 4, "steps": 30, "warmup": 3,
                     "learning_rate": 1e-2, "eval_every": 15, "eval_windows": 3, "last_windows": 0, "device": "cpu",
                     "attention": "flashomp-openmp", "dtype": "float32", "checkpoint": "none", "seed": 1}
    parts = [torch.frombuffer(bytearray(part), dtype=torch.uint8)
             for part in lm_text.tokens_of(lm_text.read_corpus([text]), 24)[:2]]
    first, again, other = (lm_training.measured(configuration | {"seed": seed}, *parts) for seed in (1, 1, 2))
    assert first["perplexity"] < 40 < first["curve"][0]["loss"] ** 3  # from about 256
    assert first["losses_digest"] == again["losses_digest"] != other["losses_digest"]
    windows = (len(parts[1]) - 1) // 24
    assert first["evaluations"][-1]["tokens"] == 24 * windows and first["evaluations"][0]["tokens"] == 72


def test_resume_runs_what_is_missing_and_keeps_the_rest(text, tmp_path):
    out = tmp_path / "some.json"
    words = ("--attention", "pytorch-math", "--dtype", "float32", "--checkpoint", "none")
    first, = run(out, text, *words)
    before = out.read_bytes()
    assert "which is there already" in refused(out, text, *words) and out.read_bytes() == before
    both = run(out, text, "--attention", *ATTENTIONS, *words[2:], "--resume")
    assert both[0] == first and [row["configuration"]["attention"] for row in both] == list(ATTENTIONS)
    data = json.loads(out.read_text())
    data["benchmarks"][1] = data["benchmarks"][1] | {"error_occurred": True, "error_message": "the process ended with status -9"}
    data["context"]["torch"] = "1.0"
    out.write_text(json.dumps(data))
    assert "whose torch is '1.0'" in refused(out, text, "--resume")
    data["context"]["torch"] = torch.__version__
    out.write_text(json.dumps(data))
    again = run(out, text, "--attention", *ATTENTIONS, *words[2:], "--resume")
    assert again[0] == first and len(again) == 2 and "error_message" not in again[1]
    before = out.read_bytes()
    assert run(out, text, "--attention", *ATTENTIONS, *words[2:], "--resume") == again and out.read_bytes() == before
    other = tmp_path / "other.txt"
    other.write_bytes(text.read_bytes()[:-1])
    assert "allowed is the same text" in refused(out, other, "--resume") and out.read_bytes() == before


def test_a_process_that_dies_and_the_end_of_time(text, tmp_path, monkeypatch):
    words = ("--attention", "pytorch-math", "--dtype", "float32", "--checkpoint", "none", "--processes", "each")
    monkeypatch.setattr(language_model.sys, "executable", "/bin/false")
    row, = run(tmp_path / "dead.json", text, *words)
    assert row["error_message"] == "the process ended with status 1" and not language_model.is_result(row)
    assert run(tmp_path / "late.json", text, *words, "--seconds", "0") == []


def test_bad_input_is_one_sentence_and_writes_nothing(text, tmp_path):
    out = tmp_path / "out.json"
    empty, short, broken = tmp_path / "empty.txt", tmp_path / "short.txt", tmp_path / "broken.gz"
    empty.touch()
    short.write_text("ten bytes\n" * 40)
    broken.write_bytes(gzip.compress(text.read_bytes())[:-20])
    assert "which holds no text" in refused(out, empty)
    assert "validation has 10 tokens; with --seqlen 32 it must have 33 or more" in refused(out, short)
    assert "cannot be read" in refused(out, broken)
    assert "cannot be read" in refused(out, tmp_path / "missing.txt")
    assert "--attention was flash; allowed on cpu are" in refused(out, text, "--attention", "flash")
    assert "--dim was 33" in refused(out, text, "--dim", "33")
    assert "--vocabulary was 100" in refused(out, text, "--vocabulary", "100")
    assert "no vocab.json and no merges.txt" in refused(out, text, "--bpe", str(tmp_path))
    assert "cannot be written" in refused(text / "out.json", text)
    assert not out.exists()
    done = subprocess.run([sys.executable, str(BENCH / "language_model.py"), "--dry-run", "--out", str(out), "--data", str(empty)],
                          capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("language_model.py: --data was") and done.stderr.count("\n") == 1


def test_wikitext_packed_files_and_byte_pairs(text, tmp_path):
    words = text.read_bytes()
    for name in ("train", "valid"):
        (tmp_path / f"wiki.{name}.tokens").write_bytes(words[:400] if name == "valid" else words)
    corpus = lm_text.read_corpus([tmp_path])
    assert (corpus.train, corpus.validation) == (words, words[:400])
    packed = tmp_path / "words.txt.gz"
    packed.write_bytes(gzip.compress(words))
    split = lm_text.read_corpus([packed])
    assert split.train + split.validation == words and 0 < len(split.validation) <= len(words) / 20
    tokenizers = pytest.importorskip("tokenizers")
    encoding = tokenizers.ByteLevelBPETokenizer()
    encoding.train([str(text)], vocab_size=300, show_progress=False)
    encoding.save_model(str(tmp_path))
    train, validation, kinds = lm_text.tokens_of(corpus, 32, tmp_path)
    assert len(train) < len(words) / 2 and max(train) < kinds == 300 - (300 - encoding.get_vocab_size())
    assert encoding.decode(validation) == words[:400].decode()
