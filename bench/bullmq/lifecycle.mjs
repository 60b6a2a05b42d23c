// Add jobs in bulk, take and complete them: node lifecycle.mjs PORT MESSAGES BATCH
//
// Prints how many jobs a second went all the way, from the first add to the last completion; this
// is the fastest of the ways that were measured on two cores. Adding and completing overlap in one
// process: two took the processor from Redis. Jobs are fetched by hand, and each completion brings
// the next one: a Worker with a processor spends more of Node's time on a job, at any concurrency.
// Clients that join commands by themselves (enableAutoPipelining) were slower, and node-redis as
// fast as this one at best.
import { Redis } from 'ioredis';
import { Job, Queue, Worker } from 'bullmq';

const [port, messages, batch] = process.argv.slice(2).map(Number);
const BODY = 'x'.repeat(200);
// With fewer the client waits for Redis; more were not faster.
const CONCURRENCY = 100;
// Small batches travel side by side, so that there is work for all.
const ADDERS = Math.max(1, Math.floor(CONCURRENCY / batch));

const connect = () => new Redis(port, '127.0.0.1', { maxRetriesPerRequest: null });
const queue = new Queue('bench', {
  connection: connect(),
  defaultJobOptions: { removeOnComplete: true },
});
const worker = new Worker('bench', null, { connection: connect() });

let added = 0;
let done = 0;
let calls = 0;
const idle = [];

/** Wake so many of those that found nothing to do. */
function wake(count) {
  calls += 1;
  for (const go of idle.splice(0, count)) go();
}

async function add() {
  while (added < messages) {
    const count = Math.min(batch, messages - added);
    added += count;
    await queue.addBulk(Array.from({ length: count }, () => ({ name: 'job', data: BODY })));
    wake(count);
  }
}

async function complete(token) {
  while (done < messages) {
    const seen = calls;
    let job = await worker.getNextJob(token, { block: false });
    // Nothing was there, and nothing came since: what is added next wakes us, or the end does.
    if (!job && calls === seen && done < messages) await new Promise((go) => idle.push(go));
    while (job) {
      if (job.data !== BODY) throw new Error(`job ${job.id} has another body`);
      const [data, id] = (await job.moveToCompleted(undefined, token, true)) ?? [];
      done += 1;
      job = data ? Job.fromJSON(worker, data, id) : undefined;
    }
  }
  wake(idle.length);
}

await Promise.all([queue.waitUntilReady(), worker.waitUntilReady()]);
const start = performance.now();
const loops = Array.from({ length: CONCURRENCY }, (_, number) => complete(`loop-${number}`));
await Promise.all([...Array.from({ length: ADDERS }, add), ...loops]);
const seconds = (performance.now() - start) / 1000;

const left = Object.values(await queue.getJobCounts()).reduce((sum, count) => sum + count, 0);
if (done !== messages || left !== 0) throw new Error(`${done} jobs completed, ${left} left`);
console.log(messages / seconds);
process.exit(0);
