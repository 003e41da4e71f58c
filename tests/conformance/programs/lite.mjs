// Apache's Node.js client and lite topics. Argument: HOST:PORT. Prints one line of JSON: what was
// heard of each lite topic, in order.

import { createRequire } from 'node:module';

const require = createRequire(process.env.CLIENT_HOME + '/');
const { Producer, LitePushConsumerImpl, ConsumeResult } = require('rocketmq-client-nodejs');

const [endpoints] = process.argv.slice(2);
const logger = { info() {}, warn() {}, error() {}, debug() {} };
const common = { endpoints, namespace: '', logger, requestTimeout: 30000 };
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

const producer = new Producer({ ...common, topics: ['Lite'] });
await producer.startup();
const send = (liteTopic, number) => producer.send({
  topic: 'Lite', liteTopic, body: Buffer.from(`${liteTopic}${number}`),
});
for (const lite of ['a', 'b', 'c']) {
  for (let k = 0; k < 3; k++) await send(lite, k);
}

const heard = {};
const count = () => Object.values(heard).reduce((sum, bodies) => sum + bodies.length, 0);
async function until(wanted) {
  for (const end = Date.now() + 120000; count() < wanted && Date.now() < end;) await pause(20);
}
const consumer = new LitePushConsumerImpl({
  ...common,
  consumerGroup: 'lite',
  bindTopic: 'Lite',
  messageListener: {
    consume(view) {
      const body = view.body.toString();
      (heard[view.liteTopic] ??= []).push(body);
      return body === 'a1' && view.deliveryAttempt === 1
        ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    },
  },
});
await consumer.startup();
await consumer.subscribeLite('a');
await consumer.subscribeLite('b');
await until(6);
await consumer.unsubscribeLite('b');
await send('b', 3);
await send('a', 3);
await until(7);
await pause(1000);
console.log(JSON.stringify(heard));
process.exit(0);
