// Runs Perfetto's trace processor. Perfetto's page runs the same bundle in a web worker; here it runs in a
// context with the few globals that the bundle asks for.

import { readFileSync } from 'node:fs';
import path from 'node:path';
import vm from 'node:vm';

import { Method, replies, request } from './rpc.mjs';

/** The most bytes of a trace in one request. */
const PART = 16 << 20;

export class Engine {
  #port;
  #bytes;
  #answer;
  #seq = 0;
  /** The version that the bundle states. */
  version;

  /** Starts the bundle in `folder`, where its .wasm lies too. */
  constructor(folder) {
    const bundle = readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8');
    this.version = bundle.match(/VERSION="([^"]+)"/)?.[1] ?? 'of unknown version';
    // The bundle writes its progress to the console.
    const quiet = () => {};
    const worker = {
      TextDecoder, URL, performance, crypto, setTimeout, clearTimeout, setInterval, clearInterval,
      console: { log: quiet, info: quiet, warn: quiet, error: quiet },
      location: { href: 'file:///engine_bundle.js' },
      WorkerGlobalScope: class {},
      XMLHttpRequest: class {
        open(_method, url) {
          this.file = path.join(folder, path.basename(url));
        }
        send() {
          this.response = readFileSync(this.file);
        }
      },
    };
    worker.self = worker;
    // The bundle asks of which classes WebAssembly, errors and arrays are instances, so they must be the
    // context's own.
    const context = vm.createContext(worker);
    this.#bytes = vm.runInContext('Uint8Array', context);
    vm.runInContext(bundle, context, { filename: 'engine_bundle.js' });
    this.#port = { postMessage: (stream) => this.#take(stream) };
    worker.onmessage({ data: this.#port });
  }

  /** Loads a trace. */
  async load(file) {
    // The module takes no request until its promises are resolved, which happens before the timer fires.
    await new Promise((resolve) => setTimeout(resolve));
    const bytes = readFileSync(file);
    for (let at = 0; at < bytes.length; at += PART) this.#ask(Method.append, bytes.subarray(at, at + PART));
    this.#ask(Method.finalize);
  }

  /** Returns the rows that `sql` selects. */
  query(sql) {
    const { columns, cells } = this.#ask(Method.query, sql);
    const rows = [];
    for (let at = 0; at < cells.length; at += columns.length) {
      rows.push(Object.fromEntries(columns.map((column, index) => [column, cells[at + index]])));
    }
    return rows;
  }

  /** Sends a request. The engine answers in one reply or more before `onmessage` returns. */
  #ask(method, body) {
    this.#answer = { columns: [], cells: [], error: undefined };
    this.#port.onmessage({ data: new this.#bytes(request(this.#seq++, method, body)) });
    if (this.#answer.error === undefined) throw new Error('it did not answer');
    if (this.#answer.error) throw new Error(this.#answer.error);
    return this.#answer;
  }

  #take(stream) {
    for (const reply of replies(Buffer.from(stream))) {
      this.#answer.error ||= reply.error;
      this.#answer.columns.push(...reply.columns);
      for (const cell of reply.cells) this.#answer.cells.push(cell);
    }
  }
}
