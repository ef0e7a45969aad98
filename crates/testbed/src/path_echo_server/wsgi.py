# Answers with the path as a WSGI program may read it, one reading per line.
import os


def application(environ, start_response):
    path = environ["PATH_INFO"].encode("latin-1")
    raw = environ["RAW_URI"].split("?")[0].encode("latin-1")
    body = b"\n".join([os.environ["NONCE"].encode(), path, raw])
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
