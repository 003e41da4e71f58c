// Apache's Java client against a node: every kind of message there and back.
// Arguments: HOST:PORT. Prints one line of JSON: what was received, by kind.

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

public class RoundTrip {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    static Message message(String topic, String body, String group, long deliverAt) {
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(topic).setTag("A")
            .setKeys("k-" + body).addProperty("color", "blue")
            .setBody(body.getBytes(StandardCharsets.UTF_8));
        if (group != null) {
            builder.setMessageGroup(group);
        }
        if (deliverAt > 0) {
            builder.setDeliveryTimestamp(deliverAt);
        }
        return builder.build();
    }

    static String text(MessageView view) {
        ByteBuffer body = view.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    static void close(PushConsumer push) {
        try {
            push.close();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static String json(List<String> words) {
        List<String> quoted = new ArrayList<>();
        for (String word : words) {
            quoted.add("\"" + word + "\"");
        }
        return "[" + String.join(",", quoted) + "]";
    }

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(30)).build();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("T", "Fifo").setTransactionChecker(view -> // a client that stands still is also asked about what it is about to decide
                text(view).equals("rolled back") ? TransactionResolution.ROLLBACK
                    : TransactionResolution.COMMIT)
            .build();
        for (int k = 0; k < 3; k++) {
            producer.send(message("T", "normal" + k, null, 0));
        }
        producer.sendAsync(message("T", "async", null, 0)).get(60, TimeUnit.SECONDS);
        for (int k = 0; k < 5; k++) {
            producer.send(message("Fifo", "fifo" + k, "one", 0));
        }
        producer.send(message("T", "delayed", null, System.currentTimeMillis() + 2000));
        Transaction committed = producer.beginTransaction();
        producer.send(message("T", "committed", null, 0), committed);
        committed.commit();
        Transaction rolledBack = producer.beginTransaction();
        producer.send(message("T", "rolled back", null, 0), rolledBack);
        rolledBack.rollback();
        producer.send(message("T", "asked", null, 0), producer.beginTransaction());

        List<String> received = new ArrayList<>();
        SimpleConsumer simple = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup("g-java")
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap("T",
                new FilterExpression("color = 'blue'", FilterExpressionType.SQL92)))
            .build();
        long end = System.currentTimeMillis() + 120_000;
        while (received.size() < 7 && System.currentTimeMillis() < end) {
            for (MessageView view : simple.receive(16, Duration.ofSeconds(15))) {
                if (received.isEmpty()) {
                    simple.changeInvisibleDuration(view, Duration.ofSeconds(20));
                }
                simple.ack(view);
                received.add(text(view));
            }
        }
        List<String> ordered = Collections.synchronizedList(new ArrayList<>());
        PushConsumer push = PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup("fifo")
            .setSubscriptionExpressions(Collections.singletonMap("Fifo",
                new FilterExpression("A", FilterExpressionType.TAG)))
            .setMessageListener(view -> {
                boolean again = text(view).equals("fifo2") && !ordered.contains("fifo2");
                ordered.add(text(view));
                return again ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build();
        while (!ordered.contains("fifo4") && System.currentTimeMillis() < end) {
            Thread.sleep(50);
        }
        Collections.sort(received);
        System.out.println("{\"received\":" + json(received) + ",\"ordered\":" + json(ordered) + "}");
        // It waits for the answers to its long polls, which come with messages.
        CompletableFuture<Void> closed = CompletableFuture.runAsync(() -> close(push));
        for (int k = 0; !closed.isDone(); k++) {
            producer.send(message("Fifo", "closing", "group" + k, 0));
            Thread.sleep(50);
        }
        closed.get();
        simple.close();
        producer.close();
        System.exit(0);
    }
}
