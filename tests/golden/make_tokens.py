"""Writes smollm2_tokens.jsonl: lines of many kinds and the ids llama.cpp gives them with the SmolLM2 vocabulary.

    python tests/golden/make_tokens.py SmolLM2-135M-Instruct.Q4_1.gguf      (needs llama-cpp-python)

A line of the file is {"text": …, "ids": […]}, add_bos=False, special=True. The generator is seeded; the source code and prose are
those of the Python that runs it, so another version gives other lines of the same kinds.
"""
import json
import pathlib
import random
import sys
import sysconfig
import unicodedata

from llama_cpp import Llama

rng = random.Random(20240613)
stdlib = pathlib.Path(sysconfig.get_paths()["stdlib"])


def pick(n, make):
    return [make() for _ in range(n)]


def stdlib_lines():
    """Code as it is (indentation, trailing spaces) and prose from docstrings, several source lines joined now and then."""
    names = "argparse ast asyncio/events codecs datetime difflib email/message fractions json/decoder random shutil statistics tarfile textwrap typing"
    lines = []
    for name in names.split():
        lines += (stdlib / f"{name}.py").read_text("utf-8").split("\n")
    lines = [line for line in lines if line.strip()]
    start = lambda: rng.randrange(len(lines) - 4)
    return pick(500, lambda: rng.choice(lines)[:160]) + pick(120, lambda: "\n".join(lines[(s := start()) : s + 3])[:240])


WORDS = """the a of calibration cache attention rotation sequence token it's don't we'll they've I'm you'd she's can't THE It'S WE'LL 'twas
rock'n'roll O'Neill quick brown fox jumps over lazy dog however, moreover; "quoted" (parenthesised) [bracketed] {braced} — – … • naïve café
Zürich façade coöperate résumé São Paulo Łódź Kraków e.g. i.e. etc. Mr. Dr. a.m. p.m. U.S.A. C++ C# F# node.js foo_bar fooBar FooBar FOO_BAR
http://example.com/a?b=c&d=%20 user@example.org /usr/local/bin C:\\\\Windows --long-option -x 3.14159 1,234,567.89 $19.99 €50 £3 ¥1000 50% 1e-5
0xDEADBEEF 0b1010 v1.2.3-rc4 2024-06-13T12:34:56Z 192.168.0.1 +1-555-0100 H2O x^2+y^2=z^2 ½ ¾ 3rd 42nd 1st ② Ⅳ ٣٤٥ १२३ 一二三""".split()


def prose():
    words = pick(rng.randint(3, 18), lambda: rng.choice(WORDS))
    return "".join(w + rng.choice([" ", " ", " ", " ", "  ", ", ", ". ", "\n"]) for w in words)


SENTENCES = """Съешь же ещё этих мягких французских булок, да выпей чаю.|Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.|דג סקרן שט בים מאוכזב ולפתע מצא חברה
نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ومغلف بجلد أزرق|ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश|เป็นมนุษย์สุดประเสริฐเลิศคุณค่า
いろはにほへと ちりぬるを わかよたれそ つねならむ|色は匂へど 散りぬるを 我が世誰ぞ 常ならむ|다람쥐 헌 쳇바퀴에 타고파|天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。
Příliš žluťoučký kůň úpěl ďábelské ódy|Pijamalı hasta yağız şoföre çabucak güvendi.|Eĥoŝanĝo ĉiuĵaŭde|Kæmi ný öxi hér, ykist þjófum nú bæði víl og ádrepa
Heizölrückstoßabdämpfung|Trăm năm trong cõi người ta|இனிய தமிழ் மொழி|తెలుగు లిపి|ಕನ್ನಡ ಭಾಷೆ|മലയാളം|বাংলা ভাষা|ગુજરાતી|ਪੰਜਾਬੀ|සිංහල|ລາວ|မြန်မာ|ខ្មែរ|ქართული ენა
հայերեն լեզու|አማርኛ|ᏣᎳᎩ|ᐃᓄᒃᑎᑐᑦ|བོད་སྐད|Монгол ᠮᠣᠩᠭᠣᠯ|ⵜⴰⵎⴰⵣⵉⵖⵜ|𐌲𐌿𐍄𐌹𐍃𐌺|𓀀𓂀𓃰|𝕬𝖇𝖈 𝟙𝟚𝟛|ﬁ ﬂ ﷽|Ǆ ǅ ǆ ʰ ˣ""".replace("\n", "|").split("|")
EMOJI = "😀 😂 ❤️ ❤ 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🧑🏿‍🚀 🇩🇪🇯🇵 1️⃣ #️⃣ 🐻‍❄️ ☃ ☃️ ✔︎ 🫠 🥲 👩🏻‍❤️‍💋‍👨🏾 🏴󠁧󠁢󠁥󠁮󠁧󠁿".split(" ")
SPACES = [" ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\u00a0", "\u00a0 ", "\u2003", "\u3000", "\u2028", "\u2029", "\u0085", "\u1680", "\u180e",
          "\u200b", "\u202f", "\u205f", "\ufeff", "\v", "\f", "\x1c", "\x1f", " " * 4, " " * 8, " " * 17]


def spaced():
    parts = pick(rng.randint(2, 8), lambda: rng.choice(["a", "it", "X1", "é", "漢", ".", "--", "'s", "7", "", "end", "٣"]))
    return "".join(p + rng.choice(SPACES) for p in parts)


SPECIAL = """<|endoftext|> <|im_start|> <|im_end|> <repo_name> <reponame> <file_sep> <filename> <gh_stars> <issue_start> <issue_comment> <issue_closed>
<jupyter_start> <jupyter_text> <jupyter_code> <jupyter_output> <jupyter_script> <empty_output>""".split()


def special():
    def one():
        token = rng.choice(SPECIAL)
        if rng.random() < 0.4:  # broken: cut, doubled, spaced or in capitals
            i = rng.randrange(len(token))
            token = rng.choice([token[:i], token[i:], token[:i] + token[i - 1 :], token[:i] + " " + token[i:], token.upper(), token[:-1] + token])
        return token
    text = ["user", "\n", " ", "system\nYou are", "<|", "|>", "<", ">", "", "code 1", "é"]
    return "".join(one() + rng.choice(text) for _ in range(rng.randint(1, 5)))


def scattered():
    """Characters from everywhere, unassigned ones included. No digits newer than Unicode 14: PCRE2 may not know them."""
    def one():
        while True:
            c = chr(rng.choice([rng.randrange(0x20, 0x3000), rng.randrange(0x3000, 0xd800), rng.randrange(0xe000, 0x20000), rng.randrange(0x20, 0x250)]))
            if not (unicodedata.category(c) == "Cn" and 0x11f50 <= ord(c) <= 0x1e4ff):
                return c
    return "".join(one() + (" " if rng.random() < 0.2 else "") for _ in range(rng.randint(1, 24)))


def marked():
    base = rng.choice(["e", "a", "क", "ก", "ا", "x", "1", " ", "가"])
    return "".join(base + "".join(pick(rng.randint(1, 4), lambda: chr(rng.choice([0x301, 0x308, 0x323, 0x20dd, 0x93f, 0x94d, 0xe31, 0x64e, 0x1161, 0x200d, 0xfe0f])))) for _ in range(rng.randint(1, 8)))


def digits():
    return "".join(rng.choice(["", " ", "  ", "-", ".", "x", "n", ",", "²", "Ⅷ", "٣", "१", "𝟙", "½"]) + str(rng.randrange(10 ** rng.randint(1, 9))) for _ in range(rng.randint(1, 6)))


def control():
    return "".join(chr(rng.choice(list(range(0x20)) + [0x7f, 0x80, 0x85, 0x9f, 0xad, 0x61, 0x20])) for _ in range(rng.randint(1, 20)))


def run():
    unit = rng.choice(["a", "A", "=", "-", " ", "\n", "\t", "é", "漢", "😀", "ab", "1", "'", "'s", "aA1 ", "\r\n", "ha", "<|", ">>> ", "\u00a0"])
    return rng.choice(["", "x", " "]) + unit * rng.randint(10, 300 // len(unit.encode())) + rng.choice(["", "y", " ", "."])


lines = stdlib_lines() + pick(380, prose) + SENTENCES + EMOJI
lines += pick(160, lambda: rng.choice(SENTENCES)[rng.randrange(4) : rng.randint(5, 40)] + rng.choice(EMOJI + SPACES) + rng.choice(SENTENCES)[:20])
lines += pick(100, lambda: "".join(pick(rng.randint(1, 5), lambda: rng.choice(EMOJI + [" ", "ok", "!"]))))
lines += pick(250, spaced) + pick(220, special) + pick(180, scattered) + pick(90, marked) + pick(140, digits) + pick(70, control) + pick(90, run)
lines += ["", " ", "\n", "'", "'s", " 's", "''s", "'S", "s'", "don't", "DON'T", "’s", "\u0000", "a\u0000b", "\ufeffbom", "\ufffd"]
lines = sorted(set(lines))
model = Llama(sys.argv[1], vocab_only=True, verbose=False)
with open(pathlib.Path(__file__).with_name("smollm2_tokens.jsonl"), "w", encoding="utf-8", newline="\n") as out:
    for line in lines:
        ids = model.tokenize(line.encode(), add_bos=False, special=True)
        print(json.dumps({"text": line, "ids": ids}, ensure_ascii=False, separators=(",", ":")), file=out)
print(len(lines), "lines")
