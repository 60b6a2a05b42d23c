// Uses every command that jackd has, against the server on the port that is given; says "done".
const assert = require('assert');
const Jackd = require('jackd');

const port = Number(process.argv[2]);
const tube = 'jackd-tube';
const called = new Set();

// Connects, and notes which methods are called.
async function connected(options) {
  const client = new Jackd(options);
  await client.connect({ host: '127.0.0.1', port });
  return new Proxy(client, {
    get(target, name) {
      if (typeof target[name] === 'function') called.add(name);
      return target[name];
    },
  });
}

const number = (text, key) => Number(new RegExp(`^${key}: (\\d+)$`, 'm').exec(text)[1]);
const fails = (promise, word) => assert.rejects(promise, (error) => error.message.startsWith(word));

async function tubes(client) {
  assert.strictEqual(client.isConnected(), true);
  assert.strictEqual(await client.use(tube), tube);
  assert.strictEqual(await client.getCurrentTube(), tube);
  assert.strictEqual(await client.listTubeUsed(), tube);
  assert.strictEqual(await client.watch(tube), 2);
  assert.strictEqual(await client.ignore('default'), 1);
  await fails(client.ignore(tube), 'NOT_IGNORED');
  assert.strictEqual(await client.listTubesWatched(), `---\n- ${tube}\n`);
  assert((await client.listTubes()).includes(`\n- ${tube}\n`));
  await fails(client.use('x'.repeat(201)), 'BAD_FORMAT');
}

async function life(client) {
  const id = await client.put('hellö', { priority: 10, ttr: 30 });
  const job = await client.reserve();
  assert.deepStrictEqual([job.id, job.payload.toString()], [id, 'hellö']);
  await client.touch(id);
  await client.release(id, { priority: 1, delay: 0 });
  assert.strictEqual(number(await client.statsJob(id), 'releases'), 1);
  assert.strictEqual((await client.reserveWithTimeout(1)).id, id);
  await client.delete(id);
  await fails(client.delete(id), 'NOT_FOUND');
  await fails(client.reserveWithTimeout(0), 'TIMED_OUT');
}

async function large(client) {
  const body = 'x'.repeat(300000);
  const id = await client.put({ body });
  const job = await client.reserve();
  assert.deepStrictEqual(JSON.parse(job.payload.toString()), { body });
  await client.delete(id);
  await fails(client.put('x'.repeat((1 << 20) + 1)), 'JOB_TOO_BIG');
}

async function buried(client) {
  const ids = [await client.put('a'), await client.put('b')];
  for (const id of ids) assert.strictEqual((await client.reserve()).id, id);
  await client.bury(ids[0], 3);
  await client.bury(ids[1], 5);
  assert.strictEqual((await client.peekBuried()).id, ids[0]);
  assert.strictEqual(await client.kick(1), 1);
  await client.kickJob(ids[1]);
  await fails(client.peekBuried(), 'NOT_FOUND');
  assert.strictEqual((await client.peekReady()).id, ids[0]);
  assert.strictEqual(number(await client.statsJob(ids[1]), 'kicks'), 1);
  for (const id of ids) await client.delete(id);
}

async function delayed(client) {
  const id = await client.put('later', { delay: 100 });
  assert.strictEqual((await client.peekDelayed()).id, id);
  await fails(client.peekReady(), 'NOT_FOUND');
  assert.strictEqual(number(await client.statsJob(id), 'delay'), 100);
  assert.strictEqual((await client.reserveJob(id)).id, id);
  await client.release(id, { delay: 100 });
  assert.strictEqual(await client.kick(10), 1);
  assert.strictEqual((await client.peek(id)).payload.toString(), 'later');
  await client.delete(id);
}

async function looks(client) {
  const id = await client.put('x', { priority: 7 });
  assert.strictEqual(number(await client.statsJob(id), 'pri'), 7);
  assert.strictEqual(number(await client.statsTube(tube), 'current-jobs-urgent'), 1);
  assert.strictEqual(number(await client.stats(), 'current-jobs-ready'), 1);
  await client.delete(id);
  await assert.rejects(client.statsJob(id));
}

async function held(client, other) {
  const id = await client.put('x', { ttr: 1 });
  await client.reserve();
  for (const verb of ['touch', 'delete', 'release', 'bury']) await fails(other[verb](id), 'NOT_FOUND');
  await fails(client.reserve(), 'DEADLINE_SOON');
  await client.delete(id);
}

async function paused(client) {
  const pause = client.pauseTube(tube, { delay: 1 });
  // It leaves out the end of this one line.
  client.socket.write('\r\n');
  await pause;
  const id = await client.put('x');
  await fails(client.reserveWithTimeout(0), 'TIMED_OUT');
  assert.strictEqual((await client.reserveWithTimeout(5)).id, id);
  await client.delete(id);
}

// What only its own code calls.
const inside = /^(constructor|processChunk|flushExecutions|create.*|write|decodeAscii.*|connect)$/;

function wanted() {
  const client = new Jackd();
  const names = [...Object.getOwnPropertyNames(Jackd.prototype), ...Object.keys(client)];
  return names.filter((name) => typeof client[name] === 'function' && !inside.test(name)).sort();
}

async function main() {
  const client = await connected();
  const other = await connected({ useLegacyStringPayloads: true });
  for (const part of [tubes, life, large, buried, delayed, looks]) await part(client);
  await held(client, other);
  await paused(client);
  await client.close();
  await other.disconnect();
  await (await connected()).quit();
  assert.deepStrictEqual([...called].sort(), wanted());
  console.log('done');
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
