# Answers with the path as a program on Python's http.server may read it, one reading per line.
import os
import sys
import urllib.parse
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

port, nonce = sys.argv[1:]


class Reader(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        plain = urllib.parse.urlparse(self.path).path
        split = urllib.parse.urlsplit(self.path).path
        file = self.translate_path(self.path)[len(os.getcwd().rstrip("/")) :]
        readings = [nonce, self.path.split("?")[0], plain, urllib.parse.unquote(plain), urllib.parse.unquote(split), file]
        body = "\n".join(readings).encode("utf-8", "surrogateescape")
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


ThreadingHTTPServer(("127.0.0.1", int(port)), Reader).serve_forever()
