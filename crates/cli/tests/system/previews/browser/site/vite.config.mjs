// A development server with an application behind it: who logs in is known by a cookie, uploads are counted, and events
// are told for as long as somebody listens.
import { createHash } from 'node:crypto';

const port = 5173;

function application(request, response, next) {
  const path = new URL(request.url, 'http://x').pathname;
  if (path === '/login' && request.method === 'POST') {
    let form = '';
    request.on('data', (piece) => (form += piece));
    request.on('end', () => {
      const name = new URLSearchParams(form).get('name');
      response.writeHead(303, {
        'set-cookie': `user=${encodeURIComponent(name)}; Path=/; HttpOnly; SameSite=Lax`,
        location: `http://localhost:${port}/who`,
      });
      response.end();
    });
  } else if (path === '/who') {
    const user = /(?:^|; )user=([^;]*)/.exec(request.headers.cookie ?? '')?.[1] ?? 'nobody';
    response.setHeader('content-type', 'text/html');
    response.end(`<!doctype html><link rel="icon" href="data:," /><p id="who">${user}</p>`);
  } else if (path === '/upload') {
    const hash = createHash('sha256');
    request.on('data', (piece) => hash.update(piece));
    request.on('end', () => response.end(hash.digest('hex')));
  } else if (path === '/events') {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    let number = 0;
    const timer = setInterval(() => response.write(`data: ${number++}\n\n`), 20);
    response.on('close', () => clearInterval(timer));
  } else {
    next();
  }
}

export default {
  cacheDir: '/tmp/vite',
  clearScreen: false,
  plugins: [{ name: 'application', configureServer: (server) => void server.middlewares.use(application) }],
  server: { host: '0.0.0.0', port, strictPort: true },
};
