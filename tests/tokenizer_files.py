"""Documents in the form of tokenizer.json, after the tokenizers of well-known models, and text to
try them on. Everything is made here, deterministically, with the library ``tokenizers``."""

import json
import random
import unicodedata
from functools import cache

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

WORDS = (
    "the of and training model tokens gradient don't we'll I'M they'VE naïve café cafe\u0301 "
    "Zu\u0308rich Straße ΔΟΚΙΜΗ δοκιμή привет Мир ёлка е\u0308лка שלום שָׁלוֹם مرحبا "
    "العَرَبِيَّة नमस्ते हिन्दी "
    "สวัสดีชาวโลก こんにちは カタカナ 漢字 中文字符 你好，世界 안녕하세요 "
    "\u1112\u1161\u11ab\u1100\u1173\u11af ﬁligree ① ½ ² Ⅷ ㎏ ｆｕｌｌ İstanbul ǅ "
    "def f(x): return x**2 != 3; // /* <html> a->b::c && || {} [] \\n 0x1F 3.14e-5 12345678 "
    "٠١٢٣ ०१२३ ๐๑๒ 👩\u200d👩\u200d👧\u200d👦 👍🏽 🇩🇪 🏳\ufe0f\u200d🌈 e\u0301\u0323 q\u0307\u0323 "
    "_x__y ... --- !!! ?? \u2026 \u2014 «» “quoted” <|endoftext|> <s> </s> <mask> [MASK] <X> x <x>y"
)
SPACES = [" ", " ", " ", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u3000", "\u2009"]
SPACES += ["\u0085", "\u200b", "\u180e", "\u2028", "\v", "\x1c", "", ""]
ADDED = ["<|endoftext|>", "<s>", "</s>", "<mask>", "[MASK]", "<X>", "\u2581", "<0x41>", "<unk>"]
BLOCKS = [(0, 0x80), (0x80, 0x250), (0x300, 0x370), (0x370, 0x600), (0x600, 0x700)]
BLOCKS += [(0x900, 0xE80), (0x1100, 0x1200), (0x1E00, 0x2070), (0x2100, 0x2200), (0x3000, 0x3100)]
BLOCKS += [(0x4E00, 0x4F00), (0xAC00, 0xAD00), (0xF900, 0xFFFE), (0x1D400, 0x1D500)]
BLOCKS += [(0x1F300, 0x1F700)]


def assigned(code: int) -> bool:
    """Not newer than the tables of any of the libraries (Hugging Face normalizes by Unicode 9), or
    an emoji; no half of a surrogate pair."""
    if 0x1F300 <= code < 0x1F600:
        return unicodedata.category(chr(code)) != "Cn"
    return unicodedata.ucd_3_2_0.category(chr(code)) not in ("Cn", "Cs")


def alike(code: int) -> bool:
    """In a block of ideographs or Hangul, whose characters have the same properties."""
    return 0x3400 <= code < 0x9FFF or 0xAC00 <= code < 0xD7A0


@cache
def characters() -> tuple[str, ...]:
    """Every assigned character, and samples of blocks that are all alike."""
    codes = (c for c in range(0x20000) if not alike(c) or c % 60 == 0)
    return tuple(chr(c) for c in codes if assigned(c))


@cache
def lines(count: int, seed: int) -> tuple[str, ...]:
    generator = random.Random(seed)
    words = WORDS.split()
    blocks = [[chr(c) for c in range(*block) if assigned(c)] for block in BLOCKS]

    def part() -> str:
        kind = generator.random()
        if kind < 0.6:
            return generator.choice(words)
        if kind < 0.7:
            return generator.choice(ADDED)
        if kind < 0.8:
            return str(generator.randrange(10 ** generator.randrange(1, 9)))
        block = generator.choice(blocks)
        return "".join(generator.choices(block, k=generator.randrange(1, 6)))

    def line() -> str:
        made = "".join(
            part() + generator.choice(SPACES) for _ in range(generator.choice((0, 1, 2, 5, 12)))
        )
        return generator.choice(SPACES) + made if generator.random() < 0.2 else made

    return tuple(line() for _ in range(count))


def document(tokenizer: Tokenizer, **changes) -> dict:
    made = json.loads(tokenizer.to_str())
    model = changes.pop("model", {})
    return {**made, **changes, "model": {**made["model"], **model}}


def train(tokenizer: Tokenizer, **options) -> Tokenizer:
    trainer = trainers.BpeTrainer(vocab_size=1200, show_progress=False, **options)
    tokenizer.train_from_iterator(lines(1500, 1), trainer)
    return tokenizer


def byte_level(split: str | None, normalizer=None, before=(), **options) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.normalizer = normalizer
    steps = list(before)
    if split is not None:
        steps.append(pre_tokenizers.Split(Regex(split), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return train(tokenizer, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"])


def sentencepiece(normalizer, pre_tokenizer, decoder) -> Tokenizer:
    model = models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizer
    # Merges never cross words in training; the file may have no pre-tokenizer.
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.Split("\u2581", "merged_with_next")
    tokenizer.decoder = decoder
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    train(tokenizer, special_tokens=special, limit_alphabet=150)
    made = document(tokenizer)
    made["added_tokens"] = made["added_tokens"][:3]
    made["pre_tokenizer"] = pre_tokenizer and made["pre_tokenizer"]
    made["model"].update(byte_fallback=True, fuse_unk=True)
    return Tokenizer.from_str(json.dumps(made))


def fallback_decoder(strip: int):
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + [decoders.Strip(" ", strip, 0)] * (strip > 0))


def odd_tokens() -> list[AddedToken]:
    return [
        AddedToken("<mask>", lstrip=True, special=True, normalized=False),
        AddedToken("[MASK]", rstrip=True, lstrip=True, special=True, normalized=False),
        AddedToken("<x>", single_word=True, special=False, normalized=True),
        AddedToken("x", single_word=True, special=False, normalized=False),
        AddedToken(" <s>", rstrip=True, special=True, normalized=False),
        AddedToken("CAFÉ", special=False, normalized=True),
        AddedToken("...", special=False, normalized=True, rstrip=True),
        AddedToken("....", special=False, normalized=False),
        AddedToken("the", special=False, normalized=True, single_word=True, lstrip=True),
        AddedToken("漢", special=False, normalized=True),
    ]


def with_odd_tokens(tokenizer: Tokenizer, **changes) -> dict:
    tokenizer = Tokenizer.from_str(json.dumps(document(tokenizer, **changes)))
    special = [token for token in odd_tokens() if token.special]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([token for token in odd_tokens() if not token.special])
    return document(tokenizer)


def word_level_suffix() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFD(),
            normalizers.Lowercase(),
            normalizers.StripAccents(),
            normalizers.Strip(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=False)]
    )
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    return train(tokenizer, special_tokens=["<unk>"], end_of_word_suffix="</w>", limit_alphabet=150)


def subword_prefix() -> Tokenizer:
    model = models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=False)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("contiguous")]
    )
    return train(
        tokenizer, special_tokens=["<unk>"], continuing_subword_prefix="##", limit_alphabet=150
    )


@cache
def documents() -> dict[str, str]:
    """The name of a case and its tokenizer.json."""
    spaces = normalizers.Replace(" ", "\u2581")
    prepend = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces])
    gpt2 = byte_level(None)
    llama3 = byte_level(LLAMA3)
    llama2 = sentencepiece(prepend, None, fallback_decoder(1))
    digits = pre_tokenizers.Digits(individual_digits=True)
    cjk = [
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
        pre_tokenizers.Split(Regex(r"[一-龥\u3040-ゟ゠-ヿ]+"), "isolated"),
    ]
    first = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"}
    lower = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()])
    lower_json = json.loads(lower.__getstate__())
    gpt2_prefix = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    made = {
        "gpt2": document(gpt2),
        "gpt2 with a blank in front": document(gpt2, pre_tokenizer=gpt2_prefix),
        "llama3": document(llama3, model={"ignore_merges": True}),
        "qwen": document(byte_level(QWEN, normalizers.NFC())),
        "o200k": document(byte_level(O200K)),
        "deepseek": document(byte_level(DEEPSEEK, before=cjk)),
        "starcoder": document(byte_level(None, before=[digits])),
        "llama2": document(llama2),
        "mistral": document(llama2, normalizer=None, pre_tokenizer={**first, "split": False}),
        "t5 like": document(llama2, normalizer=None, pre_tokenizer={**first, "split": True}),
        "gemma": document(
            sentencepiece(
                spaces, pre_tokenizers.Split(" ", "merged_with_previous"), fallback_decoder(0)
            )
        ),
        "odd tokens, llama3": with_odd_tokens(llama3),
        "odd tokens, lower case": with_odd_tokens(gpt2, normalizer=lower_json),
        "odd tokens, llama2": with_odd_tokens(llama2),
        "odd tokens, mistral": with_odd_tokens(llama2, normalizer=None, pre_tokenizer=first),
        "end of word": document(word_level_suffix()),
        "subword prefix": document(subword_prefix()),
    }
    return {name: json.dumps(value) for name, value in made.items()}


def bytes_document(**changes) -> str:
    """Each byte is a token of its own: shows what normalizers and added tokens leave."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": True}
    return json.dumps({"version": "1.0", "model": model, "added_tokens": [], **changes})


def pieces_document(pre_tokenizer: dict) -> str:
    """Each piece becomes "a" or an unknown token: shows where text is cut."""
    model = {"type": "BPE", "unk_token": "?", "fuse_unk": True, "vocab": {"?": 0, "a": 1}}
    model["merges"] = []
    return json.dumps({"version": "1.0", "model": model, "pre_tokenizer": pre_tokenizer})
