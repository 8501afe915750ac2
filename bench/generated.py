"""Pages with a part that a script writes, between two marks."""

import argparse
import sys


def filled(text, marks, between, name):
    """The page's text with other lines between its marks."""
    before, begin, rest = text.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not begin or not end:
        sys.exit(f"{name} lacks {marks[0]} or {marks[1]}.")
    return f"{before}{begin}\n{between}{end}{after}"


def main(description, script, page, marks, between):
    """Rewrites the page, or with --check says whether it differs."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true")
    text = page.read_text()
    wanted = filled(text, marks, between, page.name)
    if parser.parse_args().check:
        sys.exit(None if wanted == text else f"{page.name} differs from bench/results/; run {script}.")
    page.write_text(wanted)
