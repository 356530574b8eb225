"""Which files are a model, and which model a name means."""

import pytest

from penstock.errors import HubError
from penstock.hub.catalog import read_catalog, short_names
from penstock.hub.choices import Choice, choices, choose, draft_for
from penstock.hub.library import LocalFile
from penstock.hub.reference import Reference, is_reference, parse_reference

ANTIREZ = "antirez/deepseek-v4-gguf"
MTP = "DeepSeek-V4-Flash-MTP-Q4K-Q8_0-F32.gguf"
APRIL = "DeepSeek-V4-Flash-IQ2XXS-w2Q2K-AProjQ8-SExpQ8-OutQ8-chat-v2-imatrix.gguf"


def of(*paths: str) -> list[Choice[LocalFile]]:
    """Files with draft blocks are small ones."""
    return choices(
        [LocalFile(path, number + (10 if "MTP" in path else 1000)) for number, path in enumerate(paths)]
    )


def chosen(wanted: str, *paths: str) -> str:
    return choose(of(*paths), wanted, "a/b", {}).path


def test_splits_are_one_model_if_they_are_all_there() -> None:
    parts = [f"UD-Q2_K_XL/M-UD-Q2_K_XL-0000{n}-of-00003.gguf" for n in (3, 1, 2)]
    (model,) = of(*parts)
    assert [file.path for file in model.files] == sorted(parts)
    assert model.path == sorted(parts)[0]
    assert (model.label, model.size) == ("UD-Q2_K_XL", 3003)
    assert of(*parts[:2]) == of(parts[0], parts[2]) == []


def test_a_checkpoint_is_the_folder_without_what_is_of_no_use() -> None:
    paths = [
        "config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
        "model-00001-of-00001.safetensors",
    ]
    (model,) = of(*paths, "README.md", "inference/model.py", "inference/config.json", "LICENSE")
    assert model.path == ""
    assert [file.path for file in model.files] == sorted(paths)
    assert of("model.safetensors") == []


def test_what_goes_with_a_model_is_none() -> None:
    found = of(
        "m.gguf", "imatrix.gguf", "mmproj-F16.gguf", "M-DSpark-support-0731.gguf", "Vision-Encoder.gguf"
    )
    assert [choice.path for choice in found] == ["m.gguf"]
    assert of(APRIL)[0].path == APRIL  # made with an importance matrix, and no such matrix


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("M-Q4_K_M.gguf", "M-Q4_K_M.gguf"),
        ("m-q4_k_m", "M-Q4_K_M.gguf"),
        ("Q4_K_M", "M-Q4_K_M.gguf"),
        ("q4_k_m", "M-Q4_K_M.gguf"),
        ("Q2_K", "M-Q2_K.gguf"),  # and not the longer one
        ("Q2_K_XL", "ud/M-UD-Q2_K_XL-00001-of-00002.gguf"),
        ("ud-q2_k_xl", "ud/M-UD-Q2_K_XL-00001-of-00002.gguf"),
        ("ud/M-UD-Q2_K_XL-00002-of-00002.gguf", "ud/M-UD-Q2_K_XL-00001-of-00002.gguf"),
        ("mxfp", "M-MXFP4_MOE.gguf"),
    ],
)
def test_a_file_a_quantisation_or_a_part_of_a_name(wanted: str, expected: str) -> None:
    splits = ("ud/M-UD-Q2_K_XL-00001-of-00002.gguf", "ud/M-UD-Q2_K_XL-00002-of-00002.gguf")
    assert chosen(wanted, "M-Q4_K_M.gguf", "M-Q2_K.gguf", *splits, "M-MXFP4_MOE.gguf") == expected


def test_without_a_file_there_must_be_one_model() -> None:
    assert chosen("", "M-Q2_K.gguf", "M-MTP.gguf") == "M-Q2_K.gguf"
    with pytest.raises(HubError, match=r"several models; name one of these\n  Q2_K .* M-Q2_K\.gguf\n  Q4_K "):
        chosen("", "M-Q2_K.gguf", "M-Q4_K.gguf")
    with pytest.raises(HubError, match="no GGUF file and no safetensors"):
        chosen("", "README.md")


def test_a_name_that_fits_none_or_several() -> None:
    with pytest.raises(HubError, match=r"no model is called 'Q9'; name one of these\n  Q2_K "):
        chosen("Q9", "M-Q2_K.gguf", "M-Q4_K.gguf")
    with pytest.raises(HubError, match=r"'M-Q' is in the names of several models:\n  Q2_K .*\n  Q4_K "):
        chosen("M-Q", "M-Q2_K.gguf", "M-Q4_K.gguf")


def test_names_of_the_catalog() -> None:
    known = [model for model in read_catalog().models if model.repo == ANTIREZ]
    found = of(*(model.file for model in known), APRIL, MTP)
    for model in known:
        assert choose(found, model.name, ANTIREZ, short_names(ANTIREZ)).path == model.file


def test_a_draft_block_goes_with_models_of_its_release() -> None:
    q2 = next(model.file for model in read_catalog().models if model.name == "q2")
    pro = "DeepSeek-V4-Pro-IQ2XXS-w2Q2K-AProjQ8-SExpQ8-OutQ8-Instruct-imatrix.gguf"
    found = of(q2, APRIL, MTP, pro)
    drafts = {choice.path: draft_for(choice, found) for choice in found if not choice.is_draft}
    assert {path: draft.path for path, draft in drafts.items() if draft is not None} == {APRIL: MTP}
    assert draft_for(of(APRIL)[0], of(APRIL, MTP, f"x-{MTP}")) is None  # which of them?


def test_a_model_with_its_draft_block_inside_is_a_model() -> None:
    sizes = {"M-Q4_K_M.gguf": 1000, "M-MTP-Q4_K_M.gguf": 1100, "M-MTP-F32.gguf": 100}
    found = {choice.path: choice.is_draft for choice in choices([LocalFile(*item) for item in sizes.items()])}
    assert found == {"M-Q4_K_M.gguf": False, "M-MTP-Q4_K_M.gguf": False, "M-MTP-F32.gguf": True}
    assert not of("M-MTP-Q4_K_M.gguf")[0].is_draft


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/b", Reference("a/b")),
        ("hf:a/b:Q4_K_M", Reference("a/b", "Q4_K_M")),
        ("hf:a/b:x/y.gguf", Reference("a/b", "x/y.gguf")),
        ("hf.co/a/b:q8_0", Reference("a/b", "q8_0")),
        ("https://huggingface.co/a/b", Reference("a/b")),
        ("https:/huggingface.co/a/b/tree/main", Reference("a/b")),
        ("https://huggingface.co/a/b/resolve/main/x/y.gguf?download=true", Reference("a/b", "x/y.gguf")),
    ],
)
def test_ways_to_write_a_reference(text: str, expected: Reference) -> None:
    assert parse_reference(text) == expected
    assert is_reference(text) == (text != "a/b")


@pytest.mark.parametrize(
    "text", ["", "hf:", "a", "a/b/c", "../b", "a/..", "a--b/c", "a/b c", "hf:a/", "x" * 200 + "/y"]
)
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(HubError, match="names no repository, expected OWNER/NAME"):
        parse_reference(text)
