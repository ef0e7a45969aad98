// Answers with the path as a program on Node's http module may read it, one reading per line.
const http = require('http');
const path = require('path');
const [port, nonce] = process.argv.slice(2);

function readings(target) {
  const raw = target.split('?')[0];
  const found = [raw];
  const attempt = (read) => {
    try {
      found.push(read());
    } catch (error) {
      // Some targets cannot be decoded.
    }
  };
  attempt(() => decodeURIComponent(raw));
  attempt(() => path.posix.normalize(decodeURIComponent(raw)));
  attempt(() => new URL(target, 'http://test').pathname);
  attempt(() => decodeURIComponent(new URL(target, 'http://test').pathname));
  return found;
}

const server = http.createServer((request, response) => {
  response.end([nonce, ...readings(request.url)].join('\n'));
});
server.keepAliveTimeout = 60000;
server.listen(Number(port), '127.0.0.1');
