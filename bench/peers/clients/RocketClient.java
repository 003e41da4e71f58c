import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
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

/** RocketMQ's Java client at work: called, and answering, as the client programs in Python. */
public final class RocketClient {
    static final int QUEUES = 4;
    static final int BATCH_BYTES = 512 << 10;
    static final int BATCH_THREADS = 2;
    static final int IN_FLIGHT = 512;
    static final int PULL = 1024;
    static final int TIMEOUT_MS = 30_000;
    static final int RETRY_MS = 5;

    final String nameServer;
    final String topic;
    final int size;
    final double seconds;
    final double warmSeconds;
    final int messages;

    RocketClient(String[] words) {
        nameServer = words[0];
        topic = words[2];
        size = Integer.parseInt(words[3]);
        seconds = Double.parseDouble(words[4]);
        warmSeconds = Double.parseDouble(words[5]);
        messages = Integer.parseInt(words[6]);
    }

    public static void main(String[] words) throws Exception {
        RocketClient client = new RocketClient(words);
        switch (words[1]) {
            case "ready": client.ready(); break;
            case "consume": client.consume(); break;
            default: client.produce(words[1]);
        }
        System.exit(0);
    }

    static void began() {
        System.out.println("began");
        System.out.flush();
    }

    static void ended(long messages, double seconds, double p50, double p99) {
        System.out.printf(java.util.Locale.ROOT, "ended %d %.6f %.1f %.1f%n", messages, seconds, p50, p99);
        System.out.flush();
    }

    static double now() {
        return System.nanoTime() / 1e9;
    }

    DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setDefaultTopicQueueNums(QUEUES);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setCompressMsgBodyOverHowmuch(1 << 30);
        producer.setMaxMessageSize(4 << 20);
        producer.start();
        return producer;
    }

    Message message() {
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) 'x');
        return new Message(topic, body);
    }

    /** A message is acknowledged, by the slave as well where there is one. */
    void ready() throws Exception {
        DefaultMQProducer producer = producer("ready");
        producer.setSendMsgTimeout(1000);
        began();
        double started = now();
        while (true) {
            try {
                if (producer.send(message()).getSendStatus() == SendStatus.SEND_OK) {
                    break;
                }
            } catch (Exception error) {
                System.err.println("not yet: " + error.getMessage());
            }
            Thread.sleep(RETRY_MS);
        }
        ended(1, now() - started, 0, 0);
    }

    interface Sender {
        /** Send until the seconds are over or so many messages are stored; how many that were. */
        long send(DefaultMQProducer producer, double seconds, int messages) throws Exception;
    }

    void produce(String kind) throws Exception {
        DefaultMQProducer producer = producer("bench");
        if (kind.equals("single")) {
            singly(producer, warmSeconds);
            began();
            double started = now();
            double[] latencies = singly(producer, seconds);
            double took = now() - started;
            Arrays.sort(latencies);
            int count = latencies.length;
            ended(count, took, 1e6 * latencies[count / 2], 1e6 * latencies[(int) (0.99 * count)]);
            return;
        }
        Sender sender = kind.equals("post") ? this::posts : this::batches;
        if (warmSeconds > 0) {
            sender.send(producer, warmSeconds, 0);
        }
        began();
        double started = now();
        long stored = sender.send(producer, seconds, messages);
        ended(stored, now() - started, 0, 0);
    }

    static void must(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("not stored: " + result.getSendStatus());
        }
    }

    double[] singly(DefaultMQProducer producer, double limit) throws Exception {
        List<Double> latencies = new ArrayList<>();
        Message message = message();
        double until = now() + limit;
        for (double sent = now(); sent < until; ) {
            must(producer.send(message));
            double answered = now();
            latencies.add(answered - sent);
            sent = answered;
        }
        return latencies.stream().mapToDouble(Double::doubleValue).toArray();
    }

    /** What a thread sends in one turn; messages that are stored, 0: no more. */
    interface Turn {
        int send() throws Exception;
    }

    static long together(int count, Turn turn) throws Exception {
        AtomicLong stored = new AtomicLong();
        AtomicReference<Exception> failed = new AtomicReference<>();
        List<Thread> threads = new ArrayList<>();
        for (int k = 0; k < count; k++) {
            Thread thread = new Thread(() -> {
                try {
                    for (int sent = 1; sent > 0 && failed.get() == null; ) {
                        sent = turn.send();
                        stored.addAndGet(sent);
                    }
                } catch (Exception error) {
                    failed.set(error);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (failed.get() != null) {
            throw failed.get();
        }
        return stored.get();
    }

    /** send(Collection) in two threads; a batch is one request, and its answer is for all of it. */
    long batches(DefaultMQProducer producer, double limit, int wanted) throws Exception {
        int batch = BATCH_BYTES / (size + 40);
        AtomicLong left = new AtomicLong(wanted > 0 ? wanted : Long.MAX_VALUE);
        double until = now() + limit;
        return together(BATCH_THREADS, () -> {
            long before = wanted > 0 || now() < until ? left.getAndAdd(-batch) : 0;
            int count = (int) Math.max(0, Math.min(batch, before));
            if (count > 0) {
                List<Message> messages = new ArrayList<>(count);
                for (int n = 0; n < count; n++) {
                    messages.add(message());
                }
                must(producer.send(messages));
            }
            return count;
        });
    }

    /** The asynchronous send, a callback each, with so many in flight. */
    long posts(DefaultMQProducer producer, double limit, int wanted) throws Exception {
        Semaphore free = new Semaphore(IN_FLIGHT);
        AtomicLong stored = new AtomicLong();
        AtomicReference<Throwable> failed = new AtomicReference<>();
        SendCallback callback = new SendCallback() {
            @Override public void onSuccess(SendResult result) {
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    stored.incrementAndGet();
                } else {
                    failed.set(new IllegalStateException("not stored: " + result.getSendStatus()));
                }
                free.release();
            }

            @Override public void onException(Throwable error) {
                failed.set(error);
                free.release();
            }
        };
        long sent = 0;
        for (double until = now() + limit; now() < until && failed.get() == null; sent++) {
            free.acquire();
            producer.send(message(), callback);
        }
        if (!free.tryAcquire(IN_FLIGHT, TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException("answers are missing");
        }
        if (failed.get() != null) {
            throw new IllegalStateException(failed.get());
        }
        if (stored.get() != sent) {
            throw new IllegalStateException(stored.get() + " of " + sent + " were acknowledged");
        }
        return sent;
    }

    /** A push consumer; the clock runs from the first delivery, whose messages it omits. */
    void consume() throws Exception {
        AtomicLong count = new AtomicLong();
        AtomicLong bytes = new AtomicLong();
        AtomicLong first = new AtomicLong();
        CountDownLatch all = new CountDownLatch(1);
        double[] times = new double[2];
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("readers");
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(PULL);
        consumer.setConsumeMessageBatchMaxSize(PULL);
        consumer.setPullThresholdForQueue(65_000);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (found, context) -> {
            if (first.compareAndSet(0, found.size())) {
                times[0] = now();
                began();
            }
            long size = 0;
            for (MessageExt message : found) {
                size += message.getBody().length;
            }
            bytes.addAndGet(size);
            if (count.addAndGet(found.size()) >= messages) {
                times[1] = now();
                all.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!all.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("consumed " + count + " of " + messages);
        }
        Thread.sleep(200);
        if (count.get() != messages || bytes.get() != (long) messages * size) {
            throw new IllegalStateException("consumed " + count + " of " + messages + ", bytes " + bytes);
        }
        ended(messages - first.get(), times[1] - times[0], 0, 0);
    }
}
