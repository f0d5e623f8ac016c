"""Fields of forms, as clients write them and as they should not be misread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.wire.multipart import MAX_HEADER_BYTES, MAX_PARTS, MAX_VALUE_BYTES, field

KIND = b"multipart/form-data; boundary=x"


def form(*parts: bytes, boundary: bytes = b"x", line_end: bytes = b"\r\n") -> bytes:
    """A body with these parts, each headers and content."""
    begin = b"--%b%b" % (boundary, line_end)
    return b"".join(begin + part + line_end for part in parts) + b"--%b--%b" % (boundary, line_end)


def part(disposition: bytes, value: bytes = b"m") -> bytes:
    """A part with this Content-Disposition."""
    return b"Content-Disposition: %b\r\n\r\n%b" % (disposition, value)


@pytest.mark.parametrize(
    "disposition",
    [
        b'form-data; name="model"',
        b"form-data; name=model",
        b'form-data;name="model"',
        b'form-data; NAME = "model" ; x=y',
        b'form-data; name="model"; x=y',
        b'form-data; filename="x"; name="model"',
        b'form-data; filename="a; name=\\"other\\".wav"; name="model"',
        b'form-data; filename="C:\\\\x.wav"; name="mo\\del"',
        b'form-data; filename="%22; name=x"; name="model"',
    ],
)
def test_the_name_is_found_in_any_order_and_quoting(disposition: bytes) -> None:
    assert field(KIND, form(part(disposition)), b"model") == b"m"


@pytest.mark.parametrize(
    "disposition",
    [
        b'form-data; name="models"',
        b'form-data; filename="model"',
        b'form-data; filename="; name=model"',
        b'form-data; filename="\\"; name=\\"model\\""',
        b"form-data; xname=model",
        b"model",
    ],
)
def test_other_parameters_are_no_name(disposition: bytes) -> None:
    assert field(KIND, form(part(disposition)), b"model") is None


FILE = part(b'form-data; name="file"; filename="a.wav"', b"%b")
INSIDE = part(b'form-data; name="model"', b"evil")


@pytest.mark.parametrize(
    "content",
    [
        INSIDE,
        b"\r\n" + INSIDE + b"\r\n",
        b"\r\n--xy\r\n" + INSIDE,
        b"\n--x\n" + INSIDE.replace(b"\r\n", b"\n"),
        b"--x\r\n" + INSIDE,
        b"\r\n --x\r\n" + INSIDE,
    ],
)
@pytest.mark.parametrize("model", [None, b"m"])
def test_a_files_content_is_no_field(content: bytes, model: bytes | None) -> None:
    own = [part(b'form-data; name="model"', model)] if model else []
    assert field(KIND, form(*own, FILE % content), b"model") == model
    assert field(KIND, form(FILE % content, *own), b"model") == model


def test_other_headers_stand_before_and_behind_in_any_case() -> None:
    raw = (
        b'Content-Type: text/plain\r\ncontent-DISPOSITION:form-data; name="model"\r\nA: b\r\n\r\nm'
    )
    assert field(KIND, form(raw), b"model") == b"m"


@pytest.mark.parametrize(
    ("kind", "boundary"),
    [
        (b'Multipart/Form-Data; charset=utf-8; boundary="a b:c"', b"a b:c"),
        (b"multipart/form-data; boundary=----WebKitFormBoundaryAbC", b"----WebKitFormBoundaryAbC"),
        (b"multipart/form-data;BOUNDARY=json ; x=y", b"json"),
    ],
)
def test_the_boundary_is_read_like_any_parameter(kind: bytes, boundary: bytes) -> None:
    raw = form(part(b'form-data; name="model"'), boundary=boundary)
    assert field(kind, raw, b"model") == b"m"


@pytest.mark.parametrize("kind", [b"multipart/form-data", b"multipart/form-data; boundary=", b""])
def test_without_a_boundary_there_are_no_fields(kind: bytes) -> None:
    assert field(kind, form(part(b"form-data; name=model")), b"model") is None


def test_lines_may_end_with_a_line_feed_alone_and_delimiters_with_spaces() -> None:
    raw = form(part(b"form-data; name=model").replace(b"\r\n", b"\n"), line_end=b"\n")
    assert field(KIND, raw, b"model") == b"m"
    raw = form(part(b"form-data; name=a"), part(b"form-data; name=model"))
    assert field(KIND, b"\r\n" + raw.replace(b"--x\r\n", b"--x \t\r\n"), b"model") == b"m"


def test_of_several_the_last_counts_and_a_part_without_end_does_not() -> None:
    parts = [part(b"form-data; name=model", value) for value in (b"a", b"b", b"c")]
    assert field(KIND, form(*parts), b"model") == b"c"
    assert field(KIND, form(*parts).removesuffix(b"\r\n--x--\r\n"), b"model") == b"b"


def test_numbers_and_sizes_are_limited() -> None:
    model = part(b"form-data; name=model", b"m" * 2 * MAX_VALUE_BYTES)
    assert field(KIND, form(*[b"a: b\r\n\r\n"] * (MAX_PARTS - 1), model), b"model")
    assert field(KIND, form(*[b"a: b\r\n\r\n"] * MAX_PARTS, model), b"model") is None
    assert field(KIND, form(model), b"model") == b"m" * MAX_VALUE_BYTES
    assert field(KIND, form(b"a: %b\r\n%b" % (b"b" * MAX_HEADER_BYTES, model)), b"model") is None


names = st.sampled_from([b"model", b"file", b"language"])
contents = st.lists(
    st.sampled_from(
        [b"\r\n", b"--", b"x", b"y", b" ", b"\n", b"--xy", INSIDE, b"name=model", b"\0"]
    )
).map(b"".join)


@given(st.lists(st.tuples(names, contents.filter(lambda each: b"\r\n--x" not in each)), max_size=5))
def test_last_value_of_a_name_is_its_value(parts: list[tuple[bytes, bytes]]) -> None:
    raw = form(*(part(b'form-data; name="%b"' % name, value) for name, value in parts))
    last = dict(parts).get(b"model")
    assert field(KIND, raw, b"model") == (last if last is None else last[:MAX_VALUE_BYTES])


@given(st.binary(max_size=60), contents)
def test_any_bytes_are_read(kind: bytes, raw: bytes) -> None:
    field(b"multipart/form-data; boundary=" + kind, raw, b"model")
    field(KIND, b"--x\r\n" + raw, b"model")
