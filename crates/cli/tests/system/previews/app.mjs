// What previews are tried with: it says what it was asked, streams, echoes over WebSockets, redirects and takes uploads.
import { createHash } from 'node:crypto';
import { createServer } from 'node:http';
import { gzipSync } from 'node:zlib';

const port = Number(process.argv[2]);
const host = process.argv[3] ?? '0.0.0.0';

const server = createServer((request, response) => {
  const path = new URL(request.url, 'http://x').pathname;
  if (path === '/stream') {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    let number = 0;
    const timer = setInterval(() => response.write(`data: ${number++}\n\n`), 20);
    response.on('close', () => clearInterval(timer));
    return;
  }
  if (path === '/quiet') {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write('data: only\n\n');
    return;
  }
  if (path === '/redirect') {
    response.writeHead(302, { location: `http://localhost:${port}/there?a=b` });
    return response.end();
  }
  if (path === '/hop') {
    response.writeHead(307, { location: '/ok' });
    return response.end();
  }
  if (path === '/login') {
    response.setHeader('set-cookie', ['session=7; Path=/; HttpOnly', 'wide=1; Domain=localhost', 'remuda_preview=stolen']);
    response.setHeader('x-remuda-error', 'forged');
    return response.end('in');
  }
  if (path === '/gzip') {
    response.writeHead(200, { 'content-encoding': 'gzip', 'content-type': 'text/plain' });
    return response.end(gzipSync('packed'));
  }
  if (path === '/range') {
    const found = /bytes=(\d+)-(\d+)/.exec(request.headers.range ?? '');
    const [from, to] = found ? [Number(found[1]), Number(found[2])] : [0, 9];
    response.writeHead(found ? 206 : 200, { 'content-range': `bytes ${from}-${to}/10`, 'accept-ranges': 'bytes' });
    return response.end('0123456789'.slice(from, to + 1));
  }
  if (path === '/hang') return undefined;
  if (path === '/hangup') return request.socket.destroy();
  const hash = createHash('sha256');
  let bytes = 0;
  request.on('data', (piece) => {
    hash.update(piece);
    bytes += piece.length;
  });
  request.on('end', () => {
    const said = { method: request.method, url: request.url, headers: request.headers, pid: process.pid, bytes };
    if (bytes > 0) said.sha256 = hash.digest('hex');
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify(said));
  });
});

server.on('upgrade', (request, socket) => {
  const accept = createHash('sha1')
    .update(request.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11')
    .digest('base64');
  socket.write(
    `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`,
  );
  // Short masked frames come whole here; each is sent back without its mask.
  socket.on('data', (frame) => {
    const length = frame[1] & 0x7f;
    const mask = frame.subarray(2, 6);
    const body = Buffer.from(frame.subarray(6, 6 + length)).map((byte, at) => byte ^ mask[at % 4]);
    socket.write(Buffer.concat([Buffer.from([frame[0], length]), body]));
  });
  socket.on('error', () => socket.destroy());
});

server.keepAliveTimeout = 60_000;
server.listen(port, host, () => console.log('listening'));
