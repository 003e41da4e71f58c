// Apache's classic producer sends without end, while masters change. Arguments: HOST:PORT of name
// servers, a topic, how often it asks for routes in ms (0: as it does by itself, every 30 s).
// Prints "ready" once messages are stored. For every line of its input, prints one line of JSON: the
// longest time between two sends that succeeded since the last one, and how many succeeded or failed.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

public class Gaps {
    static final int WARM = 100, PAUSE_MS = 2;
    static final AtomicLong LAST = new AtomicLong(), LONGEST = new AtomicLong();
    static final AtomicInteger SENT = new AtomicInteger(), FAILED = new AtomicInteger();

    static void send(DefaultMQProducer producer, String topic, int number) {
        try {
            byte[] body = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
            if (producer.send(new Message(topic, body)).getSendStatus() != SendStatus.SEND_OK) {
                FAILED.incrementAndGet();
                return;
            }
            long now = System.nanoTime();
            LONGEST.accumulateAndGet(now - LAST.getAndSet(now), Math::max);
            SENT.incrementAndGet();
        } catch (Exception error) {
            FAILED.incrementAndGet();
        }
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        DefaultMQProducer producer = new DefaultMQProducer("gaps");
        producer.setNamesrvAddr(arguments[0]);
        int interval = Integer.parseInt(arguments[2]);
        if (interval > 0) {
            producer.setPollNameServerInterval(interval);
        }
        producer.start();
        LAST.set(System.nanoTime());
        Thread sending = new Thread(() -> {
            try {
                for (int number = 0; ; number++) {
                    send(producer, topic, number);
                    Thread.sleep(PAUSE_MS);
                }
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        });
        sending.setDaemon(true);
        sending.start();
        while (SENT.get() < WARM) {
            Thread.sleep(10);
        }
        LONGEST.set(0);
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        while (input.readLine() != null) {
            long now = Math.max(LONGEST.getAndSet(0), 0);
            System.out.printf("{\"longest_ms\": %d, \"sent\": %d, \"failed\": %d}%n",
                now / 1_000_000, SENT.getAndSet(0), FAILED.getAndSet(0));
            System.out.flush();
        }
        System.exit(0);
    }
}
