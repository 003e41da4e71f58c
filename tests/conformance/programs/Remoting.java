// Apache's classic client: 1,000 messages in four ways, consumers of all and of a tag, a retry.
// Arguments: HOST:PORT of a name server. Prints one line of JSON.

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class Remoting {
    static final int SYNC = 400, ASYNC = 300, ONEWAY = 100, BATCHES = 10, IN_BATCH = 20;
    static final int ALL = SYNC + ASYNC + ONEWAY + BATCHES * IN_BATCH;
    static final int AUTO = 80;
    static final int SEND_MS = 30_000; // a send that is tried again may be stored twice
    static String server;

    static Message message(String topic, int number) {
        Message made = new Message(topic, number % 2 == 0 ? "red" : "blue",
            ("body" + number).getBytes(StandardCharsets.UTF_8));
        made.putUserProperty("number", "" + number);
        made.setKeys("key" + number);
        return made;
    }

    static DefaultMQPushConsumer consumer(
            String group, String topic, String tags, MessageListenerConcurrently listener)
            throws Exception {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer(group);
        made.setNamesrvAddr(server);
        made.setHeartbeatBrokerInterval(500); // on a slow machine the first may come too early
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        made.subscribe(topic, tags);
        made.registerMessageListener(listener);
        made.start();
        return made;
    }

    static DefaultMQPushConsumer counter(
            String group, String tags, Map<String, AtomicInteger> seen) throws Exception {
        return consumer(group, "T", tags, (messages, context) -> {
            for (MessageExt one : messages) {
                String body = new String(one.getBody(), StandardCharsets.UTF_8);
                if (!body.equals("body" + one.getUserProperty("number"))) {
                    throw new IllegalStateException("a message is mixed up: " + one);
                }
                seen.computeIfAbsent(body, name -> new AtomicInteger()).incrementAndGet();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
    }

    static void until(java.util.function.BooleanSupplier done) throws Exception {
        long end = System.currentTimeMillis() + 120_000;
        while (!done.getAsBoolean() && System.currentTimeMillis() < end) {
            Thread.sleep(20);
        }
    }

    static int sends(DefaultMQProducer producer) throws Exception {
        AtomicInteger stored = new AtomicInteger();
        int number = 0;
        for (; number < SYNC; number++) {
            SendResult result = producer.send(message("T", number));
            if (result.getSendStatus() == SendStatus.SEND_OK && result.getOffsetMsgId() != null) {
                stored.incrementAndGet();
            }
        }
        CountDownLatch answers = new CountDownLatch(ASYNC);
        for (; number < SYNC + ASYNC; number++) {
            producer.send(message("T", number), new SendCallback() {
                @Override public void onSuccess(SendResult result) {
                    stored.incrementAndGet();
                    answers.countDown();
                }

                @Override public void onException(Throwable error) {
                    error.printStackTrace();
                    answers.countDown();
                }
            });
        }
        answers.await(60, TimeUnit.SECONDS);
        for (; number < SYNC + ASYNC + ONEWAY; number++) {
            producer.sendOneway(message("T", number));
        }
        for (int batch = 0; batch < BATCHES; batch++) {
            List<Message> messages = new ArrayList<>();
            for (int k = 0; k < IN_BATCH; k++, number++) {
                messages.add(message("T", number));
            }
            producer.send(messages);
        }
        return stored.get();
    }

    /** Different ids of messages that the client of RocketMQ 5 batches by itself; else as many. */
    static int batchedByItself(DefaultMQProducer producer) throws Exception {
        try {
            DefaultMQProducer.class.getMethod("setAutoBatch", boolean.class).invoke(producer, true);
        } catch (NoSuchMethodException old) {
            return AUTO;
        }
        Set<String> ids = ConcurrentHashMap.newKeySet();
        Thread[] threads = new Thread[AUTO];
        for (int k = 0; k < AUTO; k++) {
            threads[k] = new Thread(() -> {
                try {
                    ids.add(producer.send(new Message("B", new byte[] {1})).getOffsetMsgId());
                } catch (Exception error) {
                    error.printStackTrace();
                }
            });
            threads[k].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return ids.size();
    }

    static long delayed(DefaultMQProducer producer) throws Exception {
        CountDownLatch begun = new CountDownLatch(1), came = new CountDownLatch(1);
        DefaultMQPushConsumer waiting = consumer("delayed", "D", "*", (messages, context) -> {
            for (MessageExt one : messages) {
                String body = new String(one.getBody(), StandardCharsets.UTF_8);
                (body.equals("late") ? came : begun).countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        // Its queues may be its own only at the next rebalance, 20 s later.
        producer.send(new Message("D", "at once".getBytes(StandardCharsets.UTF_8)));
        begun.await(60, TimeUnit.SECONDS);
        Message late = new Message("D", "late".getBytes(StandardCharsets.UTF_8));
        late.setDelayTimeLevel(2);
        long began = System.currentTimeMillis();
        producer.send(late);
        came.await(60, TimeUnit.SECONDS);
        long took = System.currentTimeMillis() - began;
        waiting.shutdown();
        return took;
    }

    public static void main(String[] arguments) throws Exception {
        server = arguments[0];
        Map<String, AtomicInteger> all = new ConcurrentHashMap<>(), reds = new ConcurrentHashMap<>();
        List<String> attempts = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer everything = counter("everything", "*", all);
        DefaultMQPushConsumer one = counter("reds", "red || green", reds);
        DefaultMQPushConsumer failing = consumer("failing", "R", "*", (messages, context) -> {
            for (MessageExt found : messages) {
                attempts.add(found.getTopic() + found.getReconsumeTimes());
            }
            return messages.get(0).getReconsumeTimes() < 2
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQProducer producer = new DefaultMQProducer("producers");
        producer.setNamesrvAddr(server);
        producer.setSendMsgTimeout(SEND_MS);
        producer.setCompressMsgBodyOverHowmuch(1024);
        producer.start();
        producer.send(new Message("R", "again".getBytes(StandardCharsets.UTF_8)));
        int stored = sends(producer);
        until(() -> all.size() == ALL && reds.size() == ALL / 2 && attempts.contains("R2"));
        long delay = delayed(producer);
        String refused = "";
        try {
            producer.send(new Message("NotThere", "x".getBytes(StandardCharsets.UTF_8)));
        } catch (Exception error) {
            refused = error.getClass().getSimpleName();
        }
        int times = all.values().stream().mapToInt(AtomicInteger::get).sum();
        int redTimes = reds.values().stream().mapToInt(AtomicInteger::get).sum();
        boolean onlyRed = reds.keySet().stream()
            .allMatch(body -> Integer.parseInt(body.substring(4)) % 2 == 0);
        int auto = batchedByItself(producer);
        producer.shutdown();
        everything.shutdown();
        one.shutdown();
        failing.shutdown();
        System.out.printf(
            "{\"stored\": %d, \"all\": [%d, %d], \"reds\": [%d, %d, %b], \"attempts\": \"%s\", "
            + "\"delay_ms\": %d, \"refused\": \"%s\", \"auto\": %d}%n",
            stored, all.size(), times, reds.size(), redTimes, onlyRed,
            // Where the answer to it is late, a client sends a message back once more.
            String.join(" ", new LinkedHashSet<>(attempts)), delay, refused, auto);
        System.exit(0);
    }
}
