// Encodes and decodes by hand the few messages of Perfetto's TraceProcessorRpc
// (protos/perfetto/trace_processor/trace_processor.proto) that a load and a query need.

export const Method = { append: 1, finalize: 2, query: 3 };

const VARINT = 0;
const DOUBLE = 1;
const BYTES = 2;
const FLOAT = 5;

function varint(value) {
  const bytes = [];
  for (let rest = BigInt(value); ; ) {
    const low = Number(rest & 0x7fn);
    rest >>= 7n;
    bytes.push(rest > 0n ? low | 0x80 : low);
    if (rest === 0n) return Buffer.from(bytes);
  }
}

const number = (field, value) => Buffer.concat([varint((field << 3) | VARINT), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint((field << 3) | BYTES), varint(value.length), value]);

/** Returns a request in the stream's form. `body` is the trace's bytes or the query's text. */
export function request(seq, method, body) {
  const parts = [number(1, seq), number(2, method)];
  if (method === Method.append) parts.push(bytes(101, body));
  if (method === Method.query) parts.push(bytes(103, bytes(1, Buffer.from(body))));
  return bytes(1, Buffer.concat(parts));
}

function readVarint(buffer, at) {
  let value = 0n;
  for (let shift = 0n; ; shift += 7n) {
    const byte = buffer[at++];
    if (byte === undefined) throw new Error('a reply is cut short');
    value |= BigInt(byte & 0x7f) << shift;
    if (byte < 0x80) return [value, at];
  }
}

/** Yields the fields of a message, in order. */
function* fields(buffer) {
  for (let at = 0; at < buffer.length; ) {
    let tag, value;
    [tag, at] = readVarint(buffer, at);
    const wire = Number(tag & 7n);
    if (wire === VARINT) {
      [value, at] = readVarint(buffer, at);
    } else {
      let length = { [DOUBLE]: 8, [FLOAT]: 4 }[wire];
      if (wire === BYTES) {
        [length, at] = readVarint(buffer, at);
        length = Number(length);
      }
      if (length === undefined || at + length > buffer.length) throw new Error('a reply is no message');
      value = buffer.subarray(at, at + length);
      at += length;
    }
    yield { field: Number(tag >> 3n), value };
  }
}

/** Yields the replies of a stream as `{ error, columns, cells }`. Without an error, `error` is empty. */
export function* replies(stream) {
  for (const { value } of fields(stream)) {
    const reply = { error: '', columns: [], cells: [] };
    for (const { field, value: inner } of fields(value)) {
      if (field === 4) reply.error = `it knows no method ${inner}`;
      if (field === 5) reply.error = inner.toString();
      if (field === 201 || field === 212) status(inner, field === 201 ? 2 : 1, reply);
      if (field === 203) result(inner, reply);
    }
    yield reply;
  }
}

/** Reads an AppendTraceDataResult or FinalizeDataResult into `reply`. */
function status(buffer, errorField, reply) {
  for (const { field, value } of fields(buffer)) {
    if (field === errorField) reply.error = value.toString();
  }
}

/** Reads a part of a QueryResult into `reply`. */
function result(buffer, reply) {
  for (const { field, value } of fields(buffer)) {
    if (field === 1) reply.columns.push(value.toString());
    if (field === 2) reply.error = value.toString();
    if (field === 3) batch(value, reply);
  }
}

/**
 * Reads a batch into `reply`. One field of a batch has the kinds of its cells; the values are in other fields,
 * one for each kind.
 */
function batch(buffer, reply) {
  const kinds = [];
  const of = { 2: [], 3: [], 4: [], 5: [] };
  for (const { field, value } of fields(buffer)) {
    if (field === 1) kinds.push(...value);
    if (field === 2) {
      for (let at = 0; at < value.length; ) {
        let cell;
        [cell, at] = readVarint(value, at);
        of[2].push(Number(BigInt.asIntN(64, cell)));
      }
    }
    if (field === 3) for (let at = 0; at < value.length; at += 8) of[3].push(value.readDoubleLE(at));
    if (field === 4) of[5].push(value);
    if (field === 5) of[4].push(...value.toString().split('\0').slice(0, -1));
  }
  for (const kind of kinds) reply.cells.push(kind === 1 ? null : of[kind].shift());
}
