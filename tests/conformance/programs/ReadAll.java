// Apache's classic client: reads a topic with a group from its first messages on, until nothing
// comes for 2 s.
// Arguments: HOST:PORT of a name server, topic, group, number of messages.
// Prints one line of JSON: how many came, how many different ones, and all of their bodies' hash.

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

public class ReadAll {
    public static void main(String[] words) throws Exception {
        int wanted = Integer.parseInt(words[3]);
        AtomicInteger came = new AtomicInteger();
        AtomicLong last = new AtomicLong(System.currentTimeMillis());
        ConcurrentSkipListSet<String> bodies = new ConcurrentSkipListSet<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(words[2]);
        consumer.setNamesrvAddr(words[0]);
        consumer.setHeartbeatBrokerInterval(500);
        consumer.setPollNameServerInterval(1000); // a broker may still be about to register
        consumer.setPullBatchSize(1024);
        consumer.setConsumeMessageBatchMaxSize(256);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(words[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt one : messages) {
                String body = new String(one.getBody(), StandardCharsets.UTF_8);
                bodies.add(body.substring(0, body.indexOf(' ')));
                came.incrementAndGet();
            }
            last.set(System.currentTimeMillis());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long end = System.currentTimeMillis() + 120_000;
        while (System.currentTimeMillis() < end
                && (came.get() < wanted || System.currentTimeMillis() - last.get() < 2000)) {
            Thread.sleep(20);
        }
        consumer.shutdown();
        MessageDigest hash = MessageDigest.getInstance("SHA-256");
        hash.update(String.join(" ", new TreeSet<>(bodies)).getBytes(StandardCharsets.UTF_8));
        StringBuilder hex = new StringBuilder();
        for (byte one : hash.digest()) {
            hex.append(String.format("%02x", one));
        }
        System.out.printf("{\"came\": %d, \"different\": %d, \"hash\": \"%s\"}%n",
            came.get(), bodies.size(), hex);
        System.exit(0);
    }
}
