// What both sides pass on to: a short answer, a gibibyte, and WebSockets that stay open; on the sandbox's own address, and
// on its loopback address alone.
import { createHash } from 'node:crypto';
import { createServer } from 'node:http';

const [everybody, loopback] = process.argv.slice(2).map(Number);
const short = Buffer.from(JSON.stringify({ answer: 'short', of: 'some use' }));
const piece = Buffer.alloc(1 << 20, 'x');
const pieces = 1 << 10;

function big(response) {
  response.writeHead(200, { 'content-length': pieces * piece.length });
  let left = pieces;
  const more = () => {
    while (left > 0) {
      left -= 1;
      if (!response.write(piece)) return response.once('drain', more);
    }
    return response.end();
  };
  more();
}

function accept(request, socket) {
  const key = `${request.headers['sec-websocket-key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`;
  const answer = createHash('sha1').update(key).digest('base64');
  socket.write('HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n');
  socket.write(`Sec-WebSocket-Accept: ${answer}\r\n\r\n`);
  socket.on('error', () => socket.destroy());
  socket.on('end', () => socket.end());
  socket.resume();
}

function start(port, host, ready) {
  const server = createServer((request, response) => {
    if (request.url === '/big') return big(response);
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': short.length });
    return response.end(short);
  });
  server.on('upgrade', accept);
  server.keepAliveTimeout = 600_000;
  server.listen(port, host, 4096, ready);
}

start(everybody, '0.0.0.0', () => start(loopback, '127.0.0.1', () => console.log('listening')));
