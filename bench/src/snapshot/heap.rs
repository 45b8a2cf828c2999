//! A Node server whose only content is its heap.

use crate::copies::Served;

/// Its whole program. The bytes are random so that nothing of them can be left out.
const PROGRAM: &str = "import http from 'node:http';
import crypto from 'node:crypto';
const heap = [];
for (let n = 0; n < Number(process.env.HEAP_MIB); n++) heap.push(crypto.randomBytes(1 << 20));
const status = JSON.stringify({ pid: process.pid, nonce: crypto.randomUUID(), pending: heap.length });
http.createServer((request, response) => response.end(status)).listen(Number(process.env.PORT), '0.0.0.0');
";
const PORT: u16 = 8080;
/// What Node takes itself, with room, in MiB.
const BESIDE_HEAP: u32 = 512;

/// A server with so much in its memory, in MiB.
pub(super) fn served(mib: u32) -> Served {
    Served {
        argv: ["node", "server.mjs"].map(str::to_owned).to_vec(),
        directory: "/workspace/heap",
        env: vec![("PORT".to_owned(), PORT.to_string()), ("HEAP_MIB".to_owned(), mib.to_string())],
        files: vec![("server.mjs".to_owned(), PROGRAM.as_bytes().to_vec())],
        port: PORT,
        status: "/",
        work: None,
        pending: mib.into(),
        memory_mib: Some(mib + BESIDE_HEAP),
    }
}
