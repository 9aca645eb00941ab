#!/usr/bin/env node
// Loads traces into Perfetto's own parser and compares the parser's tables with the files.
//
// usage: node scripts/perfetto/check.mjs FOLDER TRACE.json...    (FOLDER: see README.md)

import { existsSync, readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';

import { Engine } from './engine.mjs';

/** Returns the folder of the engine's bundle: `folder` or one below it. */
function find(folder) {
  if (existsSync(path.join(folder, 'engine_bundle.js'))) return folder;
  const below = readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  for (const entry of below) {
    const found = find(path.join(folder, entry.name));
    if (found) return found;
  }
}

/** The phases of events for which the parser has a place. */
const KNOWN = ['M', 'X', 'i', 'b', 'n', 'e', 's', 't', 'f'];

/** Returns the contents that the parser's tables must have if it has understood every event of the file. */
function expected(events) {
  const phase = (...phases) => events.filter((event) => phases.includes(event.ph));
  const named = (name) => phase('M').filter((event) => event.name === name).map((event) => event.args.name);
  // A beginning and an end under one id make one slice. The parser puts the details of the end beside those
  // of the beginning.
  const slices = phase('X', 'i', 'b', 'n');
  return {
    slices: slices.length,
    'slices of each kind': count(slices.map((event) => event.cat)),
    'names of slices': [...new Set(slices.map((event) => event.name))].sort(),
    'slices with a length': phase('X', 'b').length,
    'time in slices of threads, in ns': phase('X').reduce((sum, { dur }) => sum + Math.round(dur * 1000), 0),
    details: phase('X', 'i', 'b', 'n', 'e').reduce((sum, { args }) => sum + Object.keys(args ?? {}).length, 0),
    arrows: phase('s').length,
    'flows, each from one slice of an arrow to its next': phase('t', 'f').length,
    processes: named('process_name').sort(),
    threads: named('thread_name').sort(),
  };
}

/** Counts how often each word occurs. */
function count(words) {
  const counts = {};
  for (const word of words.sort()) counts[word] = (counts[word] ?? 0) + 1;
  return Object.entries(counts).map(([word, number]) => `${word} ${number}`);
}

/** Returns the same figures from the parser's tables. */
function seen(engine) {
  const list = (sql) => engine.query(sql).map((row) => row.value);
  const one = (sql) => list(sql)[0];
  return {
    slices: one('select count(*) as value from slice'),
    'slices of each kind': count(list('select category as value from slice')),
    'names of slices': list('select distinct name as value from slice').sort(),
    'slices with a length': one('select count(*) as value from slice where dur > 0'),
    'time in slices of threads, in ns': one(
      'select ifnull(sum(dur), 0) as value from slice join thread_track on thread_track.id = track_id'),
    details: one("select count(*) as value from slice join args using (arg_set_id) where key glob 'args.*'"),
    arrows: one('select count(distinct slice_out) as value from flow where slice_out not in (select slice_in from flow)'),
    'flows, each from one slice of an arrow to its next': one('select count(*) as value from flow'),
    processes: list('select name as value from process where name is not null').sort(),
    threads: list('select name as value from thread where name is not null').sort(),
  };
}

/**
 * Returns the errors that the parser itself counts, and the events that it takes but shows as something that
 * was not meant.
 */
function complaints(engine, events) {
  const counted = engine.query(`select name, severity, value from stats where value > 0
    and (severity in ('error', 'data_loss') or name glob 'flow_*' or name glob 'json_*')`);
  const wrong = counted.map(({ name, severity, value }) => `${name} = ${value} (${severity})`);
  const rules = {
    'slices that did not end': 'select count(*) as value from slice where dur < 0',
    'flows back in time': `select count(*) as value from flow
      join slice as a on a.id = slice_out join slice as b on b.id = slice_in where b.ts < a.ts`,
    'slices that end after the one around them': `select count(*) as value from slice as a
      join slice as b on b.id = a.parent_id where a.ts + a.dur > b.ts + b.dur`,
  };
  for (const [rule, sql] of Object.entries(rules)) {
    const [{ value }] = engine.query(sql);
    if (value > 0) wrong.push(`${rule}: ${value}`);
  }
  // The parser passes over these silently.
  const unknown = events.filter((event) => !KNOWN.includes(event.ph));
  const labels = events.filter((event) => event.ph === 'M' && !/^(process|thread)_name$/.test(event.name));
  const ends = events.filter(({ ph }) => ph === 'e').length - events.filter(({ ph }) => ph === 'b').length;
  if (unknown.length + labels.length > 0) wrong.push(`events that it shows nowhere: ${unknown.length + labels.length}`);
  if (ends > 0) wrong.push(`ends of what did not begin: ${ends}`);
  return wrong;
}

async function check(folder, file) {
  const { traceEvents } = JSON.parse(readFileSync(file, 'utf8'));
  const engine = new Engine(folder);
  await engine.load(file);
  const [want, have, wrong] = [expected(traceEvents), seen(engine), complaints(engine, traceEvents)];
  console.log(`${file}: ${traceEvents.length} events, read by Perfetto ${engine.version}`);
  for (const [what, meant] of Object.entries(want)) {
    const got = have[what];
    const brief = what === 'slices of each kind' ? got.join(', ') : Array.isArray(got) ? got.length : got;
    console.log(`  ${what}: ${brief}`);
    if (JSON.stringify(got) !== JSON.stringify(meant)) {
      wrong.push(`${what}: the file has ${JSON.stringify(meant)}, the parser ${JSON.stringify(got)}`);
    }
  }
  const ways = engine.query(`select a.category || ' -> ' || b.category as way, count(*) as number,
      sum(a_thread.upid != b_thread.upid) as crossing from flow
    join slice as a on a.id = slice_out join slice as b on b.id = slice_in
    join thread_track as a_track on a_track.id = a.track_id join thread_track as b_track on b_track.id = b.track_id
    join thread as a_thread on a_thread.utid = a_track.utid join thread as b_thread on b_thread.utid = b_track.utid
    group by way`);
  for (const { way, number, crossing } of ways) {
    console.log(`  flows ${way}: ${number}, ${crossing} of them to another process`);
  }
  for (const words of wrong) console.log(`  WRONG: ${words}`);
  return wrong.length === 0;
}

// The whole bundle is one line, which an error in it would print: print only the message.
process.on('uncaughtException', (error) => {
  console.error(`error: ${error.message.slice(0, 2000)}`);
  process.exit(2);
});

const [folder, ...files] = process.argv.slice(2);
if (files.length === 0) throw new Error('usage: check.mjs FOLDER TRACE.json...');
const engine = find(folder);
if (!engine) throw new Error(`no engine_bundle.js in or below ${folder}: unpack the wheel there, see README.md`);
let good = true;
for (const file of files) good = (await check(engine, file)) && good;
process.exit(good ? 0 : 1);
