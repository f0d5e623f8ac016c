"""/v1/audio: forms in, texts out, in the shapes of vLLM 0.32."""

import io
import json
import wave
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.simulator.api.prompts import parse_form
from tests.simulator.talk import ask


def sound(seconds: int) -> bytes:
    """A silent WAV file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8_000)
        file.writeframes(bytes(2 * 8_000 * seconds))
    return buffer.getvalue()


async def post(client, engine, what="transcriptions", status=200, file=None, **fields) -> Any:
    """Post a form; the body of the answer."""
    form = aiohttp.FormData(fields)
    form.add_field("file", file or sound(4), filename="a.wav", content_type="audio/wav")
    async with client.post(f"{engine.url}/v1/audio/{what}", data=form) as reply:
        assert reply.status == status, await reply.text()
        return await (reply.text() if "stream" in fields else reply.json())


async def test_a_longer_sound_is_a_longer_text(client, engine):
    answer = await post(client, engine, model="sim")
    assert answer["usage"] == {"type": "duration", "seconds": 4}
    assert len(answer["text"].split()) == 10
    longer = await post(client, engine, file=sound(8))
    assert len(longer["text"].split()) == 20
    assert await post(client, engine, model="sim") == answer


async def test_a_translation_has_no_usage(client, engine):
    assert list(await post(client, engine, "translations")) == ["text"]


async def test_a_verbose_answer_has_segments(client, engine):
    answer = await post(client, engine, response_format="verbose_json", language="de")
    assert list(answer) == ["duration", "language", "text", "segments", "words"]
    assert (answer["duration"], answer["language"]) == (4, "de")
    (segment,) = answer["segments"]
    assert (segment["text"], segment["end"]) == (answer["text"], 4)


@pytest.mark.parametrize("what", ["transcriptions", "translations"])
async def test_a_streamed_text_comes_in_chunks(client, engine, what):
    whole = await post(client, engine, what)
    stream = {"stream": "true", "stream_include_usage": "true"}
    *events, done, empty = (await post(client, engine, what, **stream)).split("\n\n")
    assert (done, empty) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert {chunk["object"] for chunk in chunks} == {f"{what[:-1]}.chunk"}
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks[:-1])
    assert text == whole["text"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == len(chunks) - 1


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        (400, {"response_format": "srt"}),
        (400, {"response_format": "verbose_json", "stream": "true"}),
        (404, {"model": "nope"}),
    ],
)
async def test_wrong_forms_are_refused(client, engine, status, fields):
    await post(client, engine, status=status, **fields)


async def test_a_body_that_is_no_form_is_refused(client, engine):
    await ask(client, engine, "/v1/audio/transcriptions", status=400, model="sim")


@given(st.binary(max_size=200))
def test_the_bytes_of_a_file_are_kept(data: bytes) -> None:
    head = b'--x\r\nContent-Disposition: form-data; filename="a"; name="file"\r\n\r\n'
    headers = {"content-type": "multipart/form-data; boundary=x"}
    if b"--x" not in data:
        assert parse_form(headers, head + data + b"\r\n--x--\r\n")["file"] == data
