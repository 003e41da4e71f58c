// Apache's Node.js client: sends and consumes without end, while nodes die.
// Arguments: HOST:PORT[;HOST:PORT...]. Prints "ready" once messages come through; ends a while after
// its input does, with one line of JSON: how many were acknowledged, those of them that did not come,
// and how many sends failed.

import { createRequire } from 'node:module';

const require = createRequire(process.env.CLIENT_HOME + '/');
const { Producer, PushConsumer, ConsumeResult } = require('rocketmq-client-nodejs');

const [endpoints] = process.argv.slice(2);
const logger = { info() {}, warn() {}, error() {}, debug() {} };
const common = { endpoints, namespace: '', logger };
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
process.on('unhandledRejection', () => {}); // of its own timers, while nobody answers

const producer = new Producer({ ...common, topics: ['S'] });
await producer.startup();
const received = new Set();
const push = new PushConsumer({
  ...common,
  consumerGroup: 'g',
  subscriptions: new Map([['S', '*']]),
  messageListener: {
    consume(view) {
      received.add(Number(view.body.toString()));
      return ConsumeResult.SUCCESS;
    },
  },
});
await push.startup();
let over = false;
process.stdin.on('end', () => { over = true; });
process.stdin.resume();
const acknowledged = [];
let ready = false;
let failed = 0;
for (let number = 0; !over; number++) {
  try {
    await producer.send({ topic: 'S', body: Buffer.from(String(number)) });
    acknowledged.push(number);
  } catch {
    failed++;
    await pause(100);
  }
  await pause(5);
  if (!ready && acknowledged.length > 50 && received.size > 20) {
    ready = true;
    console.log('ready');
  }
}
let missing = [];
for (const end = Date.now() + 90000; Date.now() < end;) {
  missing = acknowledged.filter((number) => !received.has(number));
  if (!missing.length) break;
  await pause(100);
}
console.log(JSON.stringify({ acknowledged: acknowledged.length, failed, missing }));
process.exit(0);
