// Puts jobs into BullMQ, and works on them: node bullmq_jobs.mjs HOME PORT VERB [COUNT]
//
// HOME is the folder whose node_modules has BullMQ.
import { createRequire } from 'node:module';

const [home, port, verb, count] = process.argv.slice(2);
const require = createRequire(`${home}/`);
const { Redis } = require('ioredis');
const { FlowProducer, Queue, QueueEvents, Worker } = require('bullmq');

const FIRST_MS = Date.UTC(2099, 0, 1);
const HOUR_MS = 3_600_000;
const connection = new Redis(Number(port), '127.0.0.1', { maxRetriesPerRequest: null });
const queues = {};

function queue(name, more = {}) {
  queues[name] ??= new Queue(name, { connection, ...more });
  return queues[name];
}

const verbs = {
  async fill() {
    for (let number = 0; number < count; number += 500) {
      const numbers = Array.from({ length: Math.min(500, count - number) }, (_, at) => number + at);
      const jobs = (word, opts) =>
        numbers.map((n) => ({ name: 'a', data: { n }, opts: { jobId: `${word}-${n}`, ...opts(n) } }));
      // The score alone says when: delays are counted from the time of each job.
      const later = (n) => ({ timestamp: FIRST_MS - HOUR_MS + 1000 * n, delay: HOUR_MS });
      await queue('mails').addBulk(jobs('later', later));
      await queue('orders').addBulk(jobs('now', () => ({})));
    }
  },
  async odd() {
    const mails = queue('mails');
    await mails.add('large', 'x'.repeat(2 << 20), { jobId: 'large' });
    await mails.upsertJobScheduler('nightly', { pattern: '0 3 * * *' }, { name: 'night' });
    await new FlowProducer({ connection }).add({
      name: 'parent',
      queueName: 'mails',
      opts: { jobId: 'parent' },
      children: [{ name: 'child', queueName: 'mails', opts: { jobId: 'child', delay: HOUR_MS } }],
    });
    await mails.add('once', {}, { jobId: 'once', deduplication: { id: 'only', ttl: HOUR_MS }, delay: HOUR_MS });
    await mails.add('fine', 7, {
      jobId: 'fine', attempts: 5, backoff: 100, delay: HOUR_MS, priority: 3,
    });
  },
  async counted() {
    await queue('mails').add('a', { run: count });
  },
  // No Queue or Worker opens the queue of the flow.
  async flow() {
    await queue('mails').add('a', {}, { jobId: 'plain' });
    await new FlowProducer({ connection }).add({ name: 'a', queueName: 'flows', opts: { jobId: 'flown' } });
  },
  async schedulers() {
    const mails = queue('mails');
    const berlin = { tz: 'Europe/Berlin' };
    await mails.upsertJobScheduler('nightly', { pattern: '0 3 * * *', ...berlin }, {
      name: 'night', data: { a: 1 }, opts: { attempts: 3, priority: 2 },
    });
    await mails.upsertJobScheduler('often', { every: 90_000 }, { name: 'o', data: 'x' });
    await mails.upsertJobScheduler('fast', { pattern: '*/10 0 9 * * 1-5', ...berlin });
    await mails.upsertJobScheduler('both', { pattern: '0 9 13 * 5', ...berlin });
    await mails.upsertJobScheduler('stepped', { pattern: '0 9 */2 * 2', ...berlin });
    await mails.upsertJobScheduler('last', { pattern: '0 9 L * *', ...berlin });
    await mails.upsertJobScheduler('local', { pattern: '30 4 * * 0' });
    await mails.upsertJobScheduler('bounded', {
      every: HOUR_MS, startDate: new Date(FIRST_MS), endDate: new Date(FIRST_MS + 5 * HOUR_MS),
    });
    await mails.upsertJobScheduler('limited', { every: HOUR_MS, limit: 5 });
    await queue('orders').upsertJobScheduler('nightly', { pattern: '0 4 * * *', ...berlin });
    console.log((await connection.zrange('bull:mails:repeat', 0, -1, 'WITHSCORES')).join(' '));
  },
  async priorities() {
    for (const priority of [9, 1, 0, 5]) {
      await queue('mails').add('a', {}, { jobId: `p${priority}`, priority });
    }
    await queue('mails').pause();
  },
  async moved() {
    await queue('mails').add('a', {}, { jobId: 'moved', delay: HOUR_MS });
    await (await queue('mails').getJob('moved')).changeDelay(FIRST_MS - Date.now() + 500);
  },
  // A worker that fails each job once and is told of jobs that are removed goes on after a move.
  async works() {
    const events = new QueueEvents('mails', { connection: connection.duplicate() });
    const removed = [];
    events.on('removed', ({ jobId, prev }) => removed.push(`${prev} ${jobId}`));
    await events.waitUntilReady();
    const worker = new Worker('mails', async (job) => job.id, { connection });
    await worker.waitUntilReady();
    console.log('ready');
    await new Promise((resolve) => process.stdin.once('data', resolve));
    const again = await queue('mails').add('once', {}, { deduplication: { id: 'only', ttl: HOUR_MS } });
    console.log(await again.waitUntilFinished(events, 10_000) === again.id, removed.sort().join());
    await worker.close();
    await events.close();
  },
  async retries() {
    await queue('mails').add('a', {}, { jobId: 'retried', attempts: 4, backoff: HOUR_MS });
    const fails = async () => { throw new Error('no'); };
    const worker = new Worker('mails', fails, { connection: connection.duplicate() });
    await new Promise((resolve) => worker.on('failed', resolve));
    await worker.close();
  },
};

await verbs[verb]();
process.exit(0);
