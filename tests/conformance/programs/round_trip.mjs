// Apache's Node.js client against a node: every kind of message there and back.
// Arguments: HOST:PORT. Prints one line of JSON: what was received.

import { createRequire } from 'node:module';

const require = createRequire(process.env.CLIENT_HOME + '/');
const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

const endpoints = process.argv[2];
const quiet = { info() {}, warn() {}, error() {}, debug() {} };
const requestTimeout = 30000;

function message(body, more = {}) {
  return {
    topic: 'T',
    tag: 'A',
    keys: [`k-${body}`],
    properties: new Map([['color', 'blue']]),
    body: Buffer.from(body),
    ...more,
  };
}

const producer = new Producer({
  endpoints,
  logger: quiet,
  requestTimeout,
  // One topic: with two, this client waits forever for settings that arrive before the second route.
  topics: ['T'],
  // A client that stands still is also asked about what it is about to decide.
  checker: { async check(view) { return view.body.toString() === 'rolled back' ? 2 : 1; } },
});
await producer.startup();
for (let k = 0; k < 3; k++) await producer.send(message(`normal${k}`));
for (let k = 0; k < 5; k++) {
  await producer.send(message(`fifo${k}`, { topic: 'Fifo', messageGroup: 'one' }));
}
await producer.send(message('delayed', { deliveryTimestamp: new Date(Date.now() + 2000) }));
const committed = producer.beginTransaction();
await producer.send(message('committed'), committed);
await committed.commit();
const rolledBack = producer.beginTransaction();
await producer.send(message('rolled back'), rolledBack);
await rolledBack.rollback();

async function consume(group, topic, wanted) {
  const consumer = new SimpleConsumer({
    endpoints,
    logger: quiet,
    requestTimeout,
    consumerGroup: group,
    subscriptions: new Map([[topic, 'A']]),
    awaitDuration: 5000,
  });
  await consumer.startup();
  const found = [];
  const end = Date.now() + 120000;
  while (found.length < wanted && Date.now() < end) {
    for (const view of await consumer.receive(16, 15000)) {
      await consumer.ack(view);
      found.push(view.body.toString());
    }
  }
  await consumer.shutdown();
  return found;
}

const received = await consume('g-node', 'T', 5);
const ordered = await consume('fifo', 'Fifo', 5);
console.log(JSON.stringify({ received: received.sort(), ordered }));
await producer.shutdown();
process.exit(0);
