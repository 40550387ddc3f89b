"""Tokenizers against the library ``tokenizers``, and the loader from Python."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizer_files import bytes_document, characters, documents, lines, pieces_document

import shardwise

NAMES = (
    "gpt2",
    "gpt2 with a blank in front",
    "llama3",
    "qwen",
    "o200k",
    "deepseek",
    "starcoder",
    "llama2",
    "mistral",
    "t5 like",
    "gemma",
    "odd tokens, llama3",
    "odd tokens, lower case",
    "odd tokens, llama2",
    "odd tokens, mistral",
    "end of word",
    "subword prefix",
)
# The first nine in full.
LINES = {name: 10_000 if name in NAMES[:9] else 2_000 for name in NAMES}


def both(folder, text: str):
    path = folder / "tokenizer.json"
    path.write_text(text, encoding="utf-8")
    return shardwise.Tokenizer(str(path)), tokenizers.Tokenizer.from_str(text)


def assert_same(ours, theirs, texts) -> list[list[int]]:
    expected = [e.ids for e in theirs.encode_batch(list(texts), add_special_tokens=False)]
    for text, ids in zip(texts, expected, strict=True):
        assert ours.encode(text) == ids, repr(text)
    return expected


@pytest.mark.parametrize("name", NAMES)
def test_tokens_and_text_are_those_of_tokenizers(name, tmp_path):
    ours, theirs = both(tmp_path, documents()[name])
    assert ours.vocabulary_size >= theirs.get_vocab_size(with_added_tokens=True)
    expected = assert_same(ours, theirs, lines(LINES[name], 2))
    for skip, some in ((False, expected), (True, expected[:1000])):
        decoded = theirs.decode_batch(some, skip_special_tokens=skip)
        for ids, text in zip(some, decoded, strict=True):
            assert ours.decode(ids, skip_special=skip) == text, ids


def test_every_name_is_tested():
    assert set(NAMES) == set(documents())


def test_whole_files_and_random_ids(tmp_path):
    """Long texts, and ids in an order that no text gives."""
    generator = torch.Generator().manual_seed(1)
    for name in ("llama3", "llama2", "odd tokens, llama3", "end of word"):
        ours, theirs = both(tmp_path, documents()[name])
        assert_same(
            ours, theirs, ["\n".join(lines(2000, 3)), "x" * 20_000, " " * 20_000, "é\n" * 99]
        )
        for _ in range(200):
            ids = torch.randint(ours.vocabulary_size, (20,), generator=generator).tolist()
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False)


# Since Unicode 16.
NEWLY_ALPHABETIC = (*range(0x363, 0x370), 0xF82, 0xF83)
SPLITS = (
    r"\s",
    r"\S+",
    r"\w",
    r"[^\w]",
    r"\d",
    r"[\D\s]",
    r"\h",
    r"\b",
    r"\v",
    r"[[:alpha:]]",
    r"[[:^space:]\n]",
    r"\p{Han}",
    r"\p{^Greek}",
    r"\P{Letter}",
    r"\p{Alnum}",
    r"[\p{L}&&[^a-zé]]",
    r"[^\s&&[^\n]]",
    r"(?m:a.)",
    r"^.",
    r".$",
    r"a{,2}?b?",
    r"(?i:ǆ|k|σ|ß)",
    r"",
)


@pytest.mark.parametrize("expression", SPLITS)
def test_expressions_mean_the_same(expression, tmp_path):
    """Every character, between two that mostly do not match."""
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Removed"}
    ours, theirs = both(tmp_path, pieces_document({**split, "invert": False}))
    new = () if "l" not in expression else NEWLY_ALPHABETIC
    text = "".join(f"a{c}a\n" for c in characters() if ord(c) not in new)
    assert_same(ours, theirs, [text[i : i + 4000] for i in range(0, len(text), 4000)])


PRE_TOKENIZERS = (
    {"type": "Digits", "individual_digits": True},
    {"type": "Digits", "individual_digits": False},
    {"type": "Whitespace"},
    {"type": "WhitespaceSplit"},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": False},
    {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True},
    {"type": "Metaspace", "replacement": "a", "prepend_scheme": "never", "split": True},
    *({"type": "Punctuation", "behavior": b} for b in ("Isolated", "Removed", "MergedWithNext")),
    *(
        {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
        for behavior in (
            "Removed",
            "Isolated",
            "MergedWithPrevious",
            "MergedWithNext",
            "Contiguous",
        )
        for invert in (False, True)
        for pattern in ({"String": "a"}, {"Regex": r"[a ]|x*"})
    ),
)


def test_pre_tokenizers_cut_the_same(tmp_path):
    # U+166D was punctuation in Unicode 8, whose table Hugging Face has, and is a symbol now.
    text = "".join(f"a{c} " for c in characters() if c != "\u166d")
    texts = [text[i : i + 5000] for i in range(0, len(text), 5000)]
    for pre_tokenizer in PRE_TOKENIZERS:
        ours, theirs = both(tmp_path, pieces_document(pre_tokenizer))
        assert_same(ours, theirs, texts if pre_tokenizer["type"] != "Split" else lines(500, 5))


NORMALIZERS = (
    *({"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")),
    {"type": "ByteLevel"},
    {"type": "Strip", "strip_left": True, "strip_right": False},
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Replace", "pattern": {"Regex": r"\s+|é"}, "content": "__"},
    {"type": "Replace", "pattern": {"String": "e"}, "content": ""},
    {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Prepend", "prepend": "é "}]},
)


@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=lambda n: n["type"])
def test_normalizers_write_the_same(normalizer, tmp_path):
    ours, theirs = both(tmp_path, bytes_document(normalizer=normalizer))
    alone = characters()
    texts = ["".join(alone[i : i + 50]) for i in range(0, len(alone), 50)]
    texts += ["".join(alone[i : i + 2000 : 40]) for i in range(0, len(alone), 500)]
    assert_same(ours, theirs, [*texts, *lines(1000, 4), " \t a b \u3000"])


def test_bytes_that_are_no_utf8(tmp_path):
    ours, theirs = both(tmp_path, documents()["gpt2"])
    for broken in (b"a\xffb", b"\xe2\x82", b"\xf0\x9f\x98a", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5"):
        assert ours.encode(broken) == theirs.encode(broken.decode(errors="replace")).ids
    tokens = shardwise.Tokenizer("bytes")
    assert tokens.encode(b"\xff\x00a") == [255, 0, 97]
    assert tokens.decode_bytes([255, 0, 97]) == b"\xff\x00a"
    assert tokens.end_of_text is None and tokens.vocabulary_size == 256


def test_end_of_text(tmp_path):
    ours, _ = both(tmp_path, documents()["llama2"])
    assert ours.end_of_text == 2  # </s>
    fingerprint = ours.fingerprint
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<s>"}}))
    ours = shardwise.Tokenizer(str(tmp_path))
    assert ours.end_of_text == 1
    assert ours.fingerprint not in (0, fingerprint)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<none>"}))
    with pytest.raises(shardwise.DataError, match="eos_token"):
        shardwise.Tokenizer(str(tmp_path))


REFUSED = (
    ({"truncation": {"max_length": 5}}, "truncation"),
    ({"normalizer": {"type": "Nmt"}}, "normalizer.type"),
    ({"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": ""}}, "String"),
    ({"pre_tokenizer": {"type": "BertPreTokenizer"}}, "pre_tokenizer.type"),
    ({"decoder": {"type": "WordPiece"}}, "decoder.type"),
    ({"post_processor": {"type": "Other"}}, "post_processor.type"),
    ({"model": {"type": "WordPiece", "vocab": {"a": 0}}}, "model.type"),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}, r"model.merges\[0\]"),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1}}, "model.dropout"),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "new": 1}}, "model.new"),
    ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "model.vocab.a"),
    ({"added_tokens": [{"content": "x", "id": 999}]}, r"added_tokens\[0\].id"),
    ({"extra": 1}, "extra"),
)


@pytest.mark.parametrize("changes, field", REFUSED)
def test_refusals_name_file_and_field(changes, field, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(bytes_document(**changes))
    with pytest.raises(shardwise.DataError, match=f"tokenizer.json: .*{field}"):
        shardwise.Tokenizer(str(path))


@pytest.mark.parametrize(
    "expression", ["(", "(a)\\1", "(?<n>a)", "a{2}+", "a{2}?", "[a", "\\K", "\\xff", "\\p{Nothing}"]
)
def test_expressions_that_are_refused(expression, tmp_path):
    path = tmp_path / "tokenizer.json"
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated"}
    path.write_text(bytes_document(pre_tokenizer=split))
    with pytest.raises(shardwise.DataError, match="tokenizer.json: pre_tokenizer.pattern.Regex"):
        shardwise.Tokenizer(str(path))


def test_no_search_without_end(tmp_path):
    split = {"type": "Split", "pattern": {"Regex": r"(a+)+$"}, "behavior": "Isolated"}
    path = tmp_path / "tokenizer.json"
    path.write_text(bytes_document(pre_tokenizer=split))
    with pytest.raises(shardwise.DataError, match="Regex"):
        shardwise.Tokenizer(str(path)).encode("a" * 60 + "b")


def test_loader_goes_on_with_other_ranks(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(range(1, 241)))
    corpus, none = shardwise.open_corpus([str(path)], shardwise.Tokenizer("bytes"), length=4)
    assert (len(corpus), corpus.length, corpus.vocabulary, none) == (60, 4, 256, None)
    assert corpus[59].tolist() == [237, 238, 239, 240]

    def samples(loaders, steps):
        return [
            int(batch[0] // 4) for _ in range(steps) for loader in loaders for batch in next(loader)
        ]

    def make(ranks, **options):
        return [shardwise.TokenLoader(corpus, 2, (rank, ranks), **options) for rank in range(ranks)]

    whole = samples(make(1, seed=3), 30)
    assert sorted(whole) == list(range(60)) and whole != sorted(whole)
    first, second = make(3, seed=3), make(2)
    taken = samples(first, 4)
    for loader in second:
        with pytest.raises(shardwise.UsageError, match="TokenLoader.state_dict"):
            loader.load_state_dict({})
        loader.load_state_dict(first[0].state_dict())
    assert taken + samples(second, 9) == whole
    assert next(second[0]).dtype == torch.int64 and next(second[0]).shape == (2, 4)
    assert samples(make(1, shuffle=False), 2) == [0, 1, 2, 3]
    with pytest.raises(shardwise.ConfigError, match="micro-batch"):
        make(31)


def test_loader_of_separate_documents(tmp_path):
    """Batches are what a collator of transformers makes of the same documents."""
    from transformers import DataCollatorWithFlattening

    texts = ["a", "long text of one document", "bc", "def"]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
    length = sum(map(len, texts))
    files = [str(tmp_path / "*.txt")]
    corpus, _ = shardwise.open_corpus(files, "bytes", length, separate_documents=True)
    batch = next(shardwise.TokenLoader(corpus, 1))
    samples = [{"input_ids": list(text.encode())} for text in texts]
    expected = DataCollatorWithFlattening(return_flash_attn_kwargs=True)(samples, "pt")
    assert batch.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(batch[name], value) and batch[name].dtype == value.dtype, name
        else:
            assert batch[name] == value, name
    # Cut into rows: what was cut begins anew.
    corpus, _ = shardwise.open_corpus(files, "bytes", 10, separate_documents=True)
    batch = next(shardwise.TokenLoader(corpus, 2, shuffle=False))
    assert batch["cu_seq_lens_q"].tolist() == [0, 1, 10, 20] and batch["max_length_q"] == 10
    assert batch["position_ids"].tolist() == [[0, *range(9)], list(range(10))]
    together, _ = shardwise.open_corpus(files, "bytes", 10)
    assert torch.equal(next(shardwise.TokenLoader(together, 2, shuffle=False)), batch["input_ids"])


def test_held_out(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("x" * 100)
    tokens = shardwise.Tokenizer("bytes")
    train, held = shardwise.open_corpus([str(path)], tokenizer=tokens, length=10, held_out=0.2)
    assert (len(train), len(held)) == (8, 2)
    with pytest.raises(IndexError):
        held[2]


def test_tokenize_command(tmp_path):
    """The program writes what the library ``tokenizers`` gives."""
    program = Path(sys.executable).with_name("shardwise")
    ours, theirs = both(tmp_path, documents()["qwen"])
    texts = [text for text in lines(300, 6) if text.strip()]
    source, output = tmp_path / "a.jsonl", tmp_path / "a.tokens"
    source.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    arguments = ["data", "tokenize", "--tokenizer", str(tmp_path), "--output", str(output)]
    options = ["--document-per", "jsonl", "--jsonl-field=body", str(source)]
    done = subprocess.run([program, *arguments, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = [e.ids for e in theirs.encode_batch(texts, add_special_tokens=False)]
    joined = [i for ids in expected for i in [ours.end_of_text, *ids]][1:]
    corpus, _ = shardwise.open_corpus([str(output)], ours, length=1)
    assert [int(corpus[i]) for i in range(len(corpus))] == joined
    assert f"{sum(map(len, expected))} tokens, {len(texts)} documents" in done.stdout
    wrong = subprocess.run(
        [program, *arguments, "--documents-per", "x"], capture_output=True, text=True
    )
    assert wrong.returncode == 64 and "did you mean --document-per" in wrong.stderr


@pytest.mark.parametrize("unit", ["file", "line"])
def test_text_that_is_no_utf8_is_refused(unit, tmp_path):
    """By a BPE tokenizer, with the place; "bytes" takes it."""
    program = Path(sys.executable).with_name("shardwise")
    ours, _ = both(tmp_path, documents()["gpt2"])
    text = tmp_path / "latin.txt"
    text.write_bytes("plain\nna\u00efve\n".encode("latin1"))
    with pytest.raises(shardwise.DataError, match=r"latin.txt: byte 8 \(0xEF\) .*\"bytes\""):
        shardwise.open_corpus([str(text)], ours, length=1)
    assert len(shardwise.open_corpus([str(text)], shardwise.Tokenizer("bytes"), length=1)[0]) == 12
    arguments = ["data", "tokenize", "--document-per", unit, "--output", tmp_path / "t", text]
    for tokenizer, code in ((tmp_path, 65), ("bytes", 0)):
        done = subprocess.run(
            [program, *arguments, "--tokenizer", tokenizer], capture_output=True, text=True
        )
        assert done.returncode == code, done.stderr
        assert (code == 65) == ("latin.txt: byte 8 (0xEF)" in done.stderr)


def test_corpora_from_single_paths_and_names(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("0123456789" * 4)
    corpus, held_out = shardwise.open_corpus(path, "bytes", length=10)
    assert held_out is None and repr(corpus) == "<Corpus: 4 samples of 10 tokens>"
    assert corpus[0].tolist() == list(b"0123456789")
    with pytest.raises(RuntimeError, match="takes a corpus, not a PosixPath.*open_corpus"):
        shardwise.TokenLoader(path, 4)
