// Apache's classic client in a cluster of several brokers, of which it knows the name server only.
// Arguments: HOST:PORT of the name server, a topic that all brokers have, how many messages to send.
// Prints one line of JSON: how many were sent to, and came from, each broker.

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class Mixed {
    static void count(Map<String, AtomicInteger> table, String broker) {
        table.computeIfAbsent(broker, name -> new AtomicInteger()).incrementAndGet();
    }

    static String json(Map<String, AtomicInteger> table) {
        return new TreeMap<>(table).entrySet().stream()
            .map(entry -> "\"" + entry.getKey() + "\": " + entry.getValue())
            .collect(Collectors.joining(", ", "{", "}"));
    }

    public static void main(String[] arguments) throws Exception {
        String server = arguments[0], topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        Map<String, AtomicInteger> sent = new ConcurrentSkipListMap<>();
        Map<String, AtomicInteger> read = new ConcurrentSkipListMap<>();
        Set<String> bodies = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("mixed");
        consumer.setNamesrvAddr(server);
        consumer.setHeartbeatBrokerInterval(500); // on a slow machine the first may come too early
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt one : messages) {
                if (bodies.add(new String(one.getBody(), StandardCharsets.UTF_8))) {
                    count(read, one.getBrokerName());
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer("mixing");
        producer.setNamesrvAddr(server);
        producer.start();
        for (int number = 0; number < count; number++) {
            byte[] body = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
            SendResult result = producer.send(new Message(topic, body), 30_000);
            count(sent, result.getMessageQueue().getBrokerName());
        }
        long end = System.currentTimeMillis() + 120_000;
        while (bodies.size() < count && System.currentTimeMillis() < end) {
            Thread.sleep(20);
        }
        System.out.printf("{\"sent\": %s, \"read\": %s}%n", json(sent), json(read));
        System.exit(0);
    }
}
