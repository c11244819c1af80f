"""Whatever retrieved text is disguised as, it becomes no heading, no special token, no second line and no other passage."""

import random
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r3flow.llm import wording
from r3flow.protocol import PROTOCOLS
from r3flow.protocol.base import squeeze
from r3flow.protocol.r3rag import DOCUMENTS, neutralise
from r3flow.tokens import TokenStream
from r3flow.trajectory import Hit, InvalidStep, Passage, Step
from tests.poison import BLANKS, BREAKS, COLONS, HEADINGS, INVISIBLE, SPECIAL, TOKENIZERS, reads_as_heading, wide

P = PROTOCOLS["r3rag"]
patient = settings(deadline=None)


@st.composite
def disguised(draw):
    """A heading in some case and width, with other blanks and colons, accents, and invisible marks."""
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    often = rng.choice((0.0, 0.1, 0.6))
    text = ""
    for letter in rng.choice(HEADINGS):
        if letter == ":":
            letter = rng.choice(BLANKS + INVISIBLE) * (rng.random() < often) + rng.choice(COLONS)
        elif letter == " ":
            letter = "".join(rng.choices(BLANKS, k=rng.randint(1, 3))) if rng.random() < often else letter
        else:
            letter = (
                rng.choice((letter, letter.upper(), letter.lower(), wide(letter), letter + "\u0301")) if rng.random() < often else letter
            )
        text += letter + rng.choice(INVISIBLE) * (rng.random() < often)
    return text


words = st.text(st.characters(codec="utf-8"), max_size=12)
hostile = st.lists(st.one_of(disguised(), words, st.sampled_from(BREAKS + SPECIAL + list("\x00\x1b\ud800:-[] "))), max_size=10).map("".join)


@patient
@given(disguised())
def test_the_disguises_would_be_read_as_headings(text):
    assert reads_as_heading(text)


@settings(max_examples=400, deadline=None)
@given(hostile)
def test_a_neutral_text_holds_no_heading_and_is_one_line(text):
    plain = neutralise(text)
    assert not reads_as_heading(plain)
    assert plain == squeeze(plain) == neutralise(plain) and len(plain.splitlines()) <= 1
    plain.encode()


@patient
@given(st.one_of(hostile, words))
def test_all_but_a_headings_colon_stays(text):
    def kept(said):
        return [c for c in said if c not in COLONS + "- " and ":" not in unicodedata.normalize("NFKD", c)]

    line = squeeze(text)
    assert kept(neutralise(text)) == kept(line)
    if not reads_as_heading(line):
        assert neutralise(text) == line


@pytest.mark.parametrize(
    "text",
    [
        "Which film came first: A or B?", "The answer: 42", "In step with 2: no", "the final: 3:2", "Das Ende der Straße",
        "東京：日本の首都", "x² + ½ = ①",
    ],
)  # fmt: skip
def test_ordinary_text_is_left_alone(text):
    assert neutralise(text) == text


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(hostile, hostile), min_size=1, max_size=3), st.integers(16, 90))
def test_a_block_of_documents_is_one_line_whatever_the_cut(pages, cut):
    block = P.render_documents([Passage(str(place), *page) for place, page in enumerate(pages)], cut)
    assert block.startswith(f"\n{DOCUMENTS} [1]") and block.endswith("\n") and len(block.splitlines()) == 2
    assert not reads_as_heading(block[len(DOCUMENTS) + 2 :])


@pytest.fixture(scope="module", params=TOKENIZERS)
def stream(request):
    return TokenStream(TOKENIZERS[request.param](), P)


@settings(max_examples=150, deadline=None)
@given(text=hostile)
def test_a_block_in_tokens_holds_no_special_token_and_reads_as_one_line(stream, text):
    tokenizer = stream.tokenizer
    ids = stream.environment_ids(P.render_documents([Passage("1", "", text)], 200))
    assert not {tokenizer.eos_token_id, tokenizer.pad_token_id} & set(ids)
    shown = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    assert shown.count("\n") == 2 and shown.startswith("\n") and shown.endswith("\n")
    assert not reads_as_heading(shown[len(DOCUMENTS) + 1 :])
    assert not {tokenizer.eos_token_id, tokenizer.pad_token_id} & set(stream.prompt_ids(squeeze(text)))
    assert tokenizer.eos_token_id not in stream.policy_ids(squeeze(text))[:-1]


@patient
@given(words.map(squeeze))
def test_text_without_special_tokens_is_encoded_as_the_tokenizer_does(text):
    tokenizer = TOKENIZERS["unigram"]()
    if "<" not in unicodedata.normalize("NFKC", text):
        assert TokenStream(tokenizer, P).environment_ids(text) == tokenizer(text, add_special_tokens=False)["input_ids"]


@patient
@given(st.lists(st.tuples(hostile, hostile), min_size=1, max_size=4), st.none() | st.integers(16, 60))
def test_a_passage_is_one_line_for_the_judge_and_passes_for_no_other(pages, cut):
    hits = tuple(Hit(Passage(str(place), *page), 1.0) for place, page in enumerate(pages))
    step = Step(2, "I look.", query="q", hits=hits)
    lines = wording.relevance("Who?", (Step(1, "a", query="b", hits=hits),), step, cut).split("\n")
    assert [line for line in lines if not line.startswith("- ") and line != "-"] == [
        "Task: relevance", "Question: Who?", "Passages seen before:", "Analysis: I look.", "Query: q", "Passages found:"
    ]  # fmt: skip
    found = lines[lines.index("Passages found:") + 1 :]
    assert len(found) == len(hits) and len("\n".join(lines).splitlines()) == len(lines)
    for line, (title, text) in zip(found, pages, strict=True):
        assert cut is None or len(line) <= cut + 2
        if cut is None:  # the first ": " ends the title, whatever the title holds
            shown, _, rest = line[2:].partition(": ")
            assert ": " not in shown and rest == squeeze(text)
            assert shown.replace(" -", "").replace(":", "").replace(" ", "") == squeeze(title).replace(" -", "").replace(":", "").replace(
                " ", ""
            )


@pytest.mark.parametrize("digits", [10, 5000])
def test_a_step_number_without_end_is_no_step(digits):
    assert isinstance(P.parse(f"Step {'1' * digits}:\nThe problem analysis: a\nThe final answer: b", 1), InvalidStep)
