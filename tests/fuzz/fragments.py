"""Fragments of each target's input: random bytes alone rarely get past a first bracket."""

import msgpack

__all__ = ["FRAGMENTS"]

_JSON = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b" ", b"\n", b"\t", b"\r\n"),
    *(b"null", b"true", b"false", b"0", b"1", b"-1", b"1e400", b"-0.0", b"NaN", b"Infinity"),
    *(b"18446744073709551616", b"9" * 40, b"1" * 5000, b"[" * 300, b"]" * 300, b'{"a":' * 300),
    *(b'"\\ud800"', b'"\\u0000"', b'"\xff"', b'"\xed\xa0\x80"', b"\xef\xbb\xbf", '"é"'.encode()),
)
_BODY = (
    *(b'"model":', b'"prompt":', b'"messages":', b'"input":', b'"content":', b'"role":', b'"n":'),
    *(b'"stream":', b'"stream_options":', b'"max_tokens":', b'"min_tokens":', b'"best_of":'),
    *(b'"echo":', b'"logprobs":', b'"store":', b'"priority":', b'"tools":', b'"tool_choice":'),
    *(b'"type":"text","text":', b'"vllm_xargs":', b'"kv_transfer_params":', b'"cache_salt":'),
    *(b'"kv_transfer_param\\u0073":', b'"ec_transfer_params":{}', b'"prompt":"' + b"a" * 1500),
    *(b'{"model":"m","prompt":"hi"}', b'{"messages":[{"role":"user","content":"hi"}]}'),
)
_MULTIPART = (
    *(b"--b\r\n", b"--b--", b"Content-Disposition: form-data; name=model\r\n", b"\r\n", b"m\r\n"),
    *(b'content-disposition:form-data;name="model"\r\n', b"content-type: text/plain\r\n"),
)
_HEADERS = (
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"\t", b"Host: a\r\n", b"Connection: close\r\n"),
    *(b"Content-Length: 3\r\n", b"content-length: 0\r\n", b"Content-Length: -1\r\n", b"abc"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"X: y\r\n"),
    *(b"3\r\nabc\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"3;a=b\r\n", b"ffffffffffffffff\r\n"),
    *(b"Connection: keep-alive, Upgrade\r\n", b"Upgrade: h2c\r\n", b"Expect: 100-continue\r\n"),
)
_REQUESTS = (
    *(b"POST / HTTP/1.1\r\n", b"GET /a?b#c HTTP/1.1\r\n", b"POST / HTTP/1.0\r\n", b"GET /\r\n"),
    *(b"CONNECT a:1 HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"OPTIONS * HTTP/1.1\r\n"),
    b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
)
_ANSWERS = (
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 101 X\r\n", b"HTTP/1.0"),
    *(
        b"HTTP/1.1 204 X\r\n\r\n",
        b"HTTP/1.1 500 X\r\n",
        b"HTTP/1.1 000 X\r\n",
        b"HTTP/1.1 999 \r\n",
    ),
    *(b"a\r\ndata: {}\n\n\r\n", b"content-type: text/event-stream\r\n", b"Location: http://e/\r\n"),
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
)
_EVENTS = (
    *(b"data: ", b"data:", b"event: error\n", b": ping\n\n", b"\n\n", b"\r\n\r\n", b"\r\r", b"\n"),
    *(b"[DONE]", b'{"choices":[', b'{"text":""}', b'{"delta":{"role":"a"}}', b"]}", b'"usage":'),
    *(b'{"error":{"code":503}}', b'"prompt_token_ids":[1,2]', b'"completion_tokens": 12'),
    *(b',"kv_transfer_params":null', b'"kv_transfer_params" : {"a":[1]}', b'"type":"ping"'),
)
_REPLY = (
    *(b'{"choices":[{"text":"a","finish_reason":"length"}]', b'"finish_reason":"stop"'),
    *(b'"kv_transfer_params":{"first_tok":1}', b'"usage":{"prompt_tokens":1,"total_tokens":null}'),
    *(
        b'"usage":[]',
        b'"usage":5',
        b'"error":{"message":"input_value=x"}',
        b'"detail":',
        b'"tokens":',
    ),
    *(b'{"0":{"endpoint":"tcp://*:5557"}}', b'"replay_endpoint":"tcp://[::]:1"', b'"text":'),
)
_METRICS = (
    *(b"vllm:num_requests_running", b"vllm:num_requests_waiting_by_reason", b"# HELP x\n", b"\n"),
    *(
        b"vllm:kv_cache_usage_perc",
        b"vllm:cache_config_info",
        b'{reason="capacity"}',
        b'{engine="0"}',
    ),
    *(b'block_size="16"', b'num_gpu_blocks="10"', b"{", b"}", b" ", b"\t", b"1", b"1e9", b"NaN"),
)
_STORED = {
    "type": "BlockStored",
    "block_hashes": [1, 2],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
}
_KV = tuple(
    msgpack.packb(message)
    for message in (
        [0.0, [_STORED], 0],
        [0.0, [{**_STORED, "parent_block_hash": 2, "block_hashes": [3, 1]}]],
        [0.0, [{**_STORED, "extra_keys": [["a", [1]], None], "medium": "CPU", "group_idx": 1}]],
        [0.0, [{"type": "BlockRemoved", "block_hashes": [1, b"x"]}]],
        [0.0, [["BlockStored", [5], 1, [7, 8], 2, None, "GPU"], ["AllBlocksCleared"]]],
        {"events": [["BlockRemoved", [5]]]},
        [0.0, [{"type": []}, {"block_hashes": {}}, 5, [[]], ["x"]]],
        {"type": "ProxyNotif", "req_id": "a"},
        {"type": "ProxyNotif", "req_id": ["a"]},
    )
)
_MSGPACK = (
    *(b"\xff\xff", b"\x90", b"\x80", b"\xc0", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\0\0\0\1"),
    *(b"\xd7\xff" + b"\xff" * 8, b"\xc7\x0c\xff" + b"\xff" * 12, b"\x91" * 600, b"\x81\x90\x90"),
    *(b"\xd4\x01\x00", b"\xa1\xff", b"\xcf" + b"\xff" * 8, b"\xcb\x7f\xf8\0\0\0\0\0\0"),
)

_PEERS = (
    *(b'{"replica":"r",', b'"number":1,', b'"engines":{', b'"decode http://d0":', b"[1,0]"),
    *(b'"keys":"s",', b'"held":{', b'["AQAAAAAAAAD+/////////4AAAADIAAAA"]', b'["AAAA"]', b"}"),
)

FRAGMENTS: dict[str, tuple[bytes, ...]] = {
    "facts": (*(bytes([n]) for n in range(21)), *_JSON, *_BODY, *_MULTIPART),
    "client_http": (*_REQUESTS, *_HEADERS),
    "engine_http": (*_ANSWERS, *_HEADERS),
    "sse_stream": (*_EVENTS, *_JSON),
    "engine_json": (*_REPLY, *_EVENTS, *_JSON),
    "metrics": _METRICS,
    "kv_events": (*_KV, *_MSGPACK),
    "kv_stream": tuple(bytes([kind, seq]) for kind in range(16) for seq in (0, 1, 2, 3, 255)),
    "kv_ready": (*_KV, *_MSGPACK),
    "peer_line": (*_PEERS, *_JSON),
}
