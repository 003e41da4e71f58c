// Apache's Java client and lite topics. Argument: HOST:PORT. Prints one line of JSON: what was
// heard of each lite topic, in order.

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

public class Lite {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final Map<String, List<String>> HEARD = new TreeMap<>();

    static void send(Producer producer, String lite, int number) throws ClientException {
        producer.send(PROVIDER.newMessageBuilder().setTopic("Lite").setLiteTopic(lite)
            .setBody((lite + number).getBytes(StandardCharsets.UTF_8)).build());
    }

    static String text(MessageView view) {
        ByteBuffer body = view.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    static synchronized int count() {
        return HEARD.values().stream().mapToInt(List::size).sum();
    }

    static synchronized ConsumeResult hear(MessageView view) {
        String body = text(view);
        HEARD.computeIfAbsent(view.getLiteTopic().orElse(""), name -> new ArrayList<>()).add(body);
        boolean fails = body.equals("a1") && view.getDeliveryAttempt() == 1;
        return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    }

    static void until(int wanted) throws InterruptedException {
        long end = System.currentTimeMillis() + 120_000;
        while (count() < wanted && System.currentTimeMillis() < end) {
            Thread.sleep(20);
        }
    }

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(30)).build();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("Lite").build();
        for (String lite : List.of("a", "b", "c")) {
            for (int k = 0; k < 3; k++) {
                send(producer, lite, k);
            }
        }
        LitePushConsumer consumer = PROVIDER.newLitePushConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup("lite").bindTopic("Lite")
            .setMessageListener(Lite::hear).build();
        consumer.subscribeLite("a");
        consumer.subscribeLite("b");
        until(7);
        consumer.unsubscribeLite("b");
        send(producer, "b", 3);
        send(producer, "a", 3);
        until(8);
        Thread.sleep(1000);
        System.out.println(HEARD.entrySet().stream().map(entry -> "\"" + entry.getKey() + "\": ["
            + entry.getValue().stream().map(body -> "\"" + body + "\"")
                .collect(Collectors.joining(", ")) + "]")
            .collect(Collectors.joining(", ", "{", "}")));
        Runtime.getRuntime().halt(0);
    }
}
