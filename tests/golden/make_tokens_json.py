"""Writes tokens_json.jsonl: what the `tokenizers` package makes of 21,000 lines, for six published tokenizer.json files.

    python tests/golden/make_tokens_json.py DATA      (needs tokenizers; DATA has text/essays.txt and tokenizers/*/tokenizer.json.gz)

The lines are not stored: tests/text/json_lines.h makes them again, by the same arithmetic, from the essays, from smollm2_tokens.jsonl and
from the added tokens of the file. A line of the golden file is {"name", "lines", "blocks": one FNV-1a hash of the ids of each 50 lines},
or an example in full, {"name", "text", "ids"}.
"""
import gzip
import json
import pathlib
import sys

from tokenizers import Tokenizer

LINES, BLOCK, MASK = 21000, 50, 2**64 - 1
here = pathlib.Path(__file__).parent
data = pathlib.Path(sys.argv[1])
BETWEEN = ["", "", " ", "  ", "\n", "\t", "\r\n", " \n\n ", "\u00a0", "\u3000", "\u2581", "\u2581\u2581", "'s", "'LL", "12345", ".", "\u0000", "e\u0301", "\u180e", "\u2028", "</", "<0x0A>"]
SCATTER = [(0x20, 0x250), (0x20, 0x3000), (0x3000, 0xd800), (0xe000, 0x20000), (0x1f300, 0x1fb00), (0x20000, 0x110000)]


class Lines:
    """tests/text/json_lines.h is the same; characters are code points."""

    def __init__(self, seeds, essays, added):
        self.seeds, self.essays, self.added, self.state = seeds, essays, added, 1

    def next(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & MASK
        return (self.state >> 33) % n

    def slice(self):
        text = self.seeds[self.next(len(self.seeds))]
        begin = self.next(len(text))
        return text[begin : begin + 1 + self.next(40)]

    def token(self):
        token = self.added[self.next(len(self.added))]
        cut = self.next(len(token)) if self.next(4) == 0 else len(token)  # the condition is first, here and there
        return token[:cut] + token[cut + 1 :]

    def character(self):
        first, end = SCATTER[self.next(len(SCATTER))]
        return chr(first + self.next(end - first))

    def line(self, i):
        kind = i % 6
        if kind == 0:
            return self.essays[self.next(len(self.essays))]
        if kind == 1:
            return self.seeds[self.next(len(self.seeds))]
        if kind == 2:
            first = self.next(len(self.essays) - 3)
            return "\n".join(self.essays[first : first + 3])
        text = ""
        for _ in range(1 + self.next(8)):
            text += self.token() if kind == 3 and self.next(2) else self.character() if kind == 4 else self.slice()
            text += BETWEEN[self.next(len(BETWEEN))]
        return text


def fnv(numbers, h):
    for n in numbers:
        h = ((h ^ n) * 0x100000001b3) & MASK
    return h


def main():
    seeds = [t for t in (json.loads(row)["text"] for row in (here / "smollm2_tokens.jsonl").open(encoding="utf-8")) if t]
    essays = [row for row in (data / "text/essays.txt").read_text("utf-8").split(". ") if row]  # sentences
    with (here / "tokens_json.jsonl").open("w", encoding="utf-8", newline="\n") as out:
        for path in sorted((data / "tokenizers").glob("*/tokenizer.json.gz")):
            name, text = path.parent.name, gzip.open(path).read().decode()
            tokenizer = Tokenizer.from_str(text)
            lines = Lines(seeds, essays, [t["content"] for t in json.loads(text)["added_tokens"]])
            blocks, h, examples = [], 0, []
            for i in range(LINES):
                line = lines.line(i)
                ids = tokenizer.encode(line, add_special_tokens=False).ids
                h = fnv([len(ids)] + ids, h or 0xcbf29ce484222325)
                if i % BLOCK == BLOCK - 1:
                    blocks.append(f"{h:016x}"), (h := 0)
                if i % 251 < 2 and len(ids) < 60:
                    examples.append({"name": name, "text": line, "ids": ids})
            for row in [{"name": name, "lines": LINES, "blocks": blocks}] + examples[:60]:
                print(json.dumps(row, ensure_ascii=False, separators=(",", ":")), file=out)
            print(name, LINES, "lines", len(examples[:60]), "examples")


if __name__ == "__main__":
    main()
