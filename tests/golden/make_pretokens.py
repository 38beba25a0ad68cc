"""Writes pretokens.jsonl: where the pre-tokenizers of Hugging Face cut every 14th line of smollm2_tokens.jsonl.

    python tests/golden/make_pretokens.py      (needs tokenizers)

A line is {"name": …, "text": …, "ends": [byte offsets after each word]}. The patterns are those of the published tokenizer.json files
(SmolLM2, GPT-2, Llama 3.1, Qwen 3, gpt-oss, DeepSeek V3).
"""
import json
import pathlib

from tokenizers import Regex, pre_tokenizers as pre

SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + REST
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|" + REST
DEEPSEEK = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|""" + REST
split = lambda pattern: pre.Split(Regex(pattern), "isolated")
TABLE = {
    "smollm": [pre.Digits(individual_digits=True), split(GPT2)],
    "gpt-2": [split(GPT2)],
    "llama-bpe": [split(CL100K % "{1,3}")],
    "qwen2": [split(CL100K % "")],
    "gpt-4o": [split(O200K)],
    "deepseek-v3": [split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK)],
}
here = pathlib.Path(__file__).parent
texts = [json.loads(line)["text"] for line in (here / "smollm2_tokens.jsonl").open(encoding="utf-8")][::14]
with (here / "pretokens.jsonl").open("w", encoding="utf-8", newline="\n") as out:
    for name, steps in TABLE.items():
        cutter = pre.Sequence(steps)
        for text in filter(None, texts):
            ends, words = [], cutter.pre_tokenize_str(text)
            assert "".join(word for word, _ in words) == text
            for word, _ in words:
                ends.append((ends[-1] if ends else 0) + len(word.encode()))
            print(json.dumps({"name": name, "text": text, "ends": ends}, ensure_ascii=False, separators=(",", ":")), file=out)
