// Drives a real Chromium for a test: one command a line on stdin as JSON, one answer a line on stdout. Ends with its stdin.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const [parts, executablePath, flag] = process.argv.slice(2);
const { chromium } = createRequire(`${parts}/`)('playwright-core');
// As root, Chromium's own sandbox can't be used. Names below localhost must not go to a proxy of the machine's.
const args = ['--no-sandbox', '--no-proxy-server'];
const browser = await chromium.launch({ executablePath, args });
const context = await browser.newContext({ ignoreHTTPSErrors: flag === 'any-authority' });
const tabs = new Map();

async function opened(name) {
  const page = await context.newPage();
  const tab = { page, sockets: [], wrong: [] };
  page.on('websocket', (socket) => tab.sockets.push(socket.url()));
  page.on('pageerror', (error) => tab.wrong.push(`script: ${error.message}`));
  page.on('response', (response) => {
    if (response.status() >= 400) tab.wrong.push(`${response.status()} ${new URL(response.url()).pathname}`);
  });
  tabs.set(name, tab);
  return tab;
}

const commands = {
  async open({ tab, url }) {
    const { page } = tabs.get(tab) ?? (await opened(tab));
    const response = await page.goto(url);
    return { status: response.status(), url: page.url() };
  },
  evaluate: ({ tab, script }) => tabs.get(tab).page.evaluate(script),
  async until({ tab, script }) {
    await tabs.get(tab).page.waitForFunction(script, null, { timeout: 60_000 });
    return null;
  },
  async fill({ tab, selector, text }) {
    await tabs.get(tab).page.fill(selector, text);
    return null;
  },
  // Clicks, and waits for the page that it leads to.
  async follow({ tab, selector }) {
    const { page } = tabs.get(tab);
    await Promise.all([page.waitForEvent('load'), page.click(selector)]);
    return { url: page.url() };
  },
  async choose({ tab, selector, bytes }) {
    const file = { name: 'file.bin', mimeType: 'application/octet-stream', buffer: Buffer.alloc(bytes, 'x') };
    await tabs.get(tab).page.setInputFiles(selector, file);
    return null;
  },
  seen: ({ tab }) => ({ sockets: tabs.get(tab).sockets, wrong: tabs.get(tab).wrong }),
  async close({ tab }) {
    await tabs.get(tab).page.close();
    tabs.delete(tab);
    return null;
  },
};

const say = (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`);
say({ value: browser.version() });
try {
  for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    try {
      say({ value: (await commands[command.do](command)) ?? null });
    } catch (error) {
      say({ error: `${command.do}: ${error.message}` });
    }
  }
} finally {
  await browser.close();
}
