// A driver of BullMQ: one JSON object a line, as bench/peers/driver.py says.
import { openSync, writeSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { setTimeout as rest } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { Job, Queue, Worker } from 'bullmq';

// How many jobs a worker has under way; more were not faster.
const CONCURRENCY = 100;
const ERROR_REST_MS = 50;
const bodyOf = (number) => String(number).padStart(10, '0').padEnd(200, 'x');
const now = () => performance.timeOrigin + performance.now();

let address;
let queue;
const connect = () => new Redis(address, { maxRetriesPerRequest: null });

/** Return what appends numbers and the time to a file, as pairs of doubles. */
function logTo(path) {
  const file = openSync(path, 'a');
  return (numbers) => log(file, numbers);
}

function log(file, numbers) {
  const at = now();
  const pairs = new DataView(new ArrayBuffer(16 * numbers.length));
  numbers.forEach((number, place) => {
    pairs.setFloat64(16 * place, number, true);
    pairs.setFloat64(16 * place + 8, at, true);
  });
  writeSync(file, pairs);
}

/** Share the numbers of one command among its callers, and call for each batch. */
async function calls(command, call) {
  const { first, count, batch, start_ms: startMs = null, rate = 0, lead_ms: leadMs = 0 } = command;
  const start = now();
  const told = { count: 0, errors: 0, error: '' };
  const confirmed = command.file && logTo(command.file);
  let next = first;
  const dueOf = (number) => startMs + (rate ? Math.floor(((number - first) * 1000) / rate) : 0);
  async function caller() {
    while (next < first + count && !(now() - start > command.seconds * 1000)) {
      const size = Math.min(batch, first + count - next);
      const numbers = Array.from({ length: size }, (_, place) => next + place);
      next += size;
      const dues = startMs === null ? null : numbers.map(dueOf);
      if (leadMs) await rest(Math.max(dues[0] - leadMs - now(), 0));
      try {
        // Others change the count while this one waits.
        const done = await call(numbers, dues);
        told.count += done;
        confirmed?.(numbers);
      } catch (error) {
        told.errors += 1;
        told.error ||= String(error);
        await rest(ERROR_REST_MS);
      }
    }
  }
  await Promise.all(Array.from({ length: command.callers }, caller));
  return { ...told, seconds: (now() - start) / 1000 };
}

const verbs = {
  async open(command) {
    address = command.address;
    queue = new Queue('bench', {
      connection: connect(),
      defaultJobOptions: { removeOnComplete: true },
    });
    await queue.waitUntilReady();
    const { version } = createRequire(import.meta.url)('bullmq/package.json');
    return { versions: { bullmq: version }, can: { put: 1000, cancel: 1, move: 1 } };
  },

  async take({ takers, file }) {
    const taken = logTo(file);
    const handle = async (job) => taken([Number(job.data.slice(0, 10))]);
    for (let taker = 0; taker < takers; taker += 1) {
      const worker = new Worker('bench', handle, {
        connection: connect(),
        concurrency: CONCURRENCY,
      });
      worker.on('error', (error) => console.error(String(error)));
      await worker.waitUntilReady();
    }
    return {};
  },

  put: (command) =>
    calls(command, async (numbers, dues) => {
      const jobs = numbers.map((number, place) => ({
        name: 'job',
        data: bodyOf(number),
        opts: {
          ...(dues && { delay: Math.max(dues[place] - Math.floor(now()), 0) }),
          // Ids of digits alone are refused.
          ...(command.keep && { jobId: `m${number}` }),
        },
      }));
      if (jobs.length === 1) await queue.add('job', jobs[0].data, jobs[0].opts);
      else await queue.addBulk(jobs);
      return jobs.length;
    }),

  cancel: (command) => calls(command, ([number]) => queue.remove(`m${number}`)),

  move: (command) =>
    calls(command, async ([number], [due]) => {
      const job = await Job.fromId(queue, `m${number}`);
      await job.changeDelay(due - Math.floor(now()));
      return 1;
    }),
};

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  const answer = await verbs[command.do](command).catch((error) => ({ failed: String(error) }));
  console.log(JSON.stringify(answer));
}
process.exit(0);
