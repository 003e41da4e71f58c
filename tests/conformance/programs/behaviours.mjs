// Apache's Node.js client over TLS, with keys, in a namespace: what goes wrong and is tried again.
// Arguments: HOST:PORT NAMESPACE ACCESS_KEY SECRET_KEY. Prints one line of JSON.

import { createRequire } from 'node:module';

const require = createRequire(process.env.CLIENT_HOME + '/');
const { Producer, SimpleConsumer, PushConsumer, ConsumeResult } = require('rocketmq-client-nodejs');

const [endpoints, namespace, accessKey, accessSecret] = process.argv.slice(2);
const logger = { info() {}, warn() {}, error() {}, debug() {} };
const common = {
  endpoints, namespace, logger, requestTimeout: 30000,
  sslEnabled: true, sessionCredentials: { accessKey, accessSecret },
};
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

const producer = new Producer({ ...common, topics: ['T'] });
await producer.startup();
const send = (body, more = {}) => producer.send({ topic: 'T', body: Buffer.from(body), ...more });

const delayed = await send('recalled', { deliveryTimestamp: new Date(Date.now() + 60000) });
const recalled = await producer.recallMessage('T', delayed.recallHandle);

const simple = new SimpleConsumer({
  ...common, consumerGroup: 'simple', subscriptions: new Map([['T', '*']]), awaitDuration: 5000,
});
await simple.startup();
async function next() {
  const end = Date.now() + 120000;
  while (Date.now() < end) {
    const found = await simple.receive(1, 30000);
    if (found.length) return found[0];
  }
  throw new Error('nothing came');
}
await send('twice');
const first = await next();
await simple.changeInvisibleDuration(first, 1000);
const second = await next();
let stale = false;
try {
  await simple.ack(first);
} catch {
  stale = true;
}
await simple.ack(second);

const attempts = [];
const push = new PushConsumer({
  ...common,
  consumerGroup: 'g',
  subscriptions: new Map([['T', '*']]),
  messageListener: {
    consume(view) {
      if (view.body.toString() !== 'poison') return ConsumeResult.SUCCESS;
      attempts.push(view.deliveryAttempt);
      return ConsumeResult.FAILURE;
    },
  },
});
await push.startup();
await send('poison');
for (const end = Date.now() + 120000; attempts.length < 3 && Date.now() < end;) await pause(50);
await pause(1000);
console.log(JSON.stringify({
  recalled: recalled.messageId === delayed.messageId,
  deliveries: [first.deliveryAttempt, second.deliveryAttempt],
  stale,
  attempts,
}));
process.exit(0);
