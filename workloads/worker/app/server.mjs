// A worker that takes one batch of jobs, waits, and turns it into receipts when it is released.
//
// The batch lives in this process's heap and nowhere else: copy the files and it is lost, copy the memory and it is
// there. `processor.mjs` is imported at the release and not before, so that it can be replaced until then.

import { createHash, randomBytes } from "node:crypto";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";

const PORT = Number(process.env.PORT ?? 8080);
const PREPARATION = process.env.PREPARATION ?? "none";
const BODY_BYTES_MAX = 1 << 20;
const JOBS_MAX = 10_000;

// Made at start, told on request, stored nowhere: whoever answers with it is this very process, or a copy of it.
const nonce = randomBytes(16).toString("hex");

let queue = [];
let submitted = false;
let marker = null;
let released = false;
let processor = null;
let completed = false;
let receipts = [];

const routes = {
  "POST /jobs": async (request) => {
    const jobs = await readJson(request);
    if (!Array.isArray(jobs) || jobs.length < 1 || jobs.length > JOBS_MAX || !jobs.every(isJob)) {
      return refuse(400, "a batch is an array of jobs: {id, item, quantity, unitCents}");
    }
    if (submitted) return refuse(409, "a batch was submitted before; this worker takes one");
    submitted = true;
    queue = jobs;
    return { status: 201, body: { pending: queue.length } };
  },

  "GET /status": async () => ({
    status: 200,
    body: {
      pid: process.pid,
      nonce,
      preparation: PREPARATION,
      pending: queue.length,
      fingerprint: fingerprint(queue),
      marker,
      released,
      completed,
    },
  }),

  "POST /marker": async (request) => {
    const body = await readJson(request);
    if (typeof body?.marker !== "string") return refuse(400, "give {marker} as a string");
    marker = body.marker;
    return { status: 200, body: { marker } };
  },

  "POST /release": async () => {
    if (released) return refuse(409, "released before");
    released = true;
    const file = new URL("./processor.mjs", import.meta.url);
    processor = sha256(await readFile(file));
    const { receiptsFor } = await import(file);
    receipts = receiptsFor(queue);
    queue = [];
    completed = true;
    return { status: 200, body: { released, processor } };
  },

  "GET /results": async () => ({ status: 200, body: { completed, processor, receipts } }),
};

function isJob(job) {
  return (
    typeof job?.id === "string" &&
    typeof job.item === "string" &&
    Number.isSafeInteger(job.quantity) &&
    Number.isSafeInteger(job.unitCents)
  );
}

// What the queue holds, in order, as one digest. The check outside computes the same from its own list.
function fingerprint(jobs) {
  return sha256(JSON.stringify(jobs.map((job) => [job.id, job.item, job.quantity, job.unitCents])));
}

function sha256(data) {
  return createHash("sha256").update(data).digest("hex");
}

function refuse(status, error) {
  return { status, body: { error } };
}

async function readJson(request) {
  const pieces = [];
  let length = 0;
  for await (const piece of request) {
    length += piece.length;
    if (length > BODY_BYTES_MAX) return undefined;
    pieces.push(piece);
  }
  try {
    return JSON.parse(Buffer.concat(pieces).toString("utf8"));
  } catch {
    return undefined;
  }
}

const server = createServer(async (request, response) => {
  const route = routes[`${request.method} ${request.url}`];
  let answer;
  try {
    answer = route ? await route(request) : refuse(404, "no such route");
  } catch (error) {
    answer = refuse(500, String(error));
  }
  response.writeHead(answer.status, { "Content-Type": "application/json", "Cache-Control": "no-store" });
  response.end(JSON.stringify(answer.body));
});

server.listen(PORT, "0.0.0.0", () => console.log(`worker ${process.pid} listens on port ${server.address().port}`));
