// The load of a comparison on BullMQ: `node bullmq_client.mjs WORK PORT MESSAGES PARALLEL`.
//
// See run.py for the loads. Publishers share a connection, and PARALLEL jobs have no answer at any
// time. Each worker is a Worker of its own with a concurrency of 1. It takes the next job when Redis
// has answered that the job before is completed. Completed jobs are removed.

import { Queue, Worker } from "bullmq";

const PAYLOAD = { text: ".".repeat(100) };
const OPTIONS = { removeOnComplete: true };
// Jobs added before the clock starts are added in groups of this size.
const GROUP = 500;

const [, , work, ...numbers] = process.argv;
const [port, messages, parallel] = numbers.map(Number);
const connection = { host: "127.0.0.1", port, maxRetriesPerRequest: null };
const queue = new Queue(`bench-${process.pid}`, { connection });
await queue.waitUntilReady();

async function timed(act) {
  console.log("begin");
  const began = process.hrtime.bigint();
  const cpu = process.cpuUsage();
  await act();
  const seconds = Number(process.hrtime.bigint() - began) / 1e9;
  const used = process.cpuUsage(cpu);
  console.log(JSON.stringify({ seconds, client_cpu_s: (used.user + used.system) / 1e6 }));
}

async function publish() {
  let left = messages;
  async function publisher() {
    while (left > 0) {
      left -= 1;
      await queue.add("job", PAYLOAD, OPTIONS);
    }
  }
  await Promise.all(Array.from({ length: parallel }, publisher));
}

async function take(workers) {
  let left = messages;
  await new Promise((resolve, reject) => {
    for (const worker of workers) {
      worker.on("completed", () => {
        left -= 1;
        if (left === 0) resolve();
      });
      worker.on("failed", (job, error) => reject(error));
      worker.on("error", reject);
      worker.run();
    }
  });
}

if (work === "workers") {
  for (let low = 0; low < messages; low += GROUP) {
    const count = Math.min(GROUP, messages - low);
    const job = { name: "job", data: PAYLOAD, opts: OPTIONS };
    await queue.addBulk(Array.from({ length: count }, () => job));
  }
  const workers = Array.from(
    { length: parallel },
    () => new Worker(queue.name, async () => {}, { connection, autorun: false }),
  );
  await Promise.all(workers.map((worker) => worker.waitUntilReady()));
  await timed(() => take(workers));
} else {
  await timed(publish);
}
process.exit(0);
