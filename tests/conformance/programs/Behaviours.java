// Apache's Java client over TLS, with keys, in a namespace: what goes wrong and is tried again.
// Arguments: HOST:PORT NAMESPACE ACCESS_KEY SECRET_KEY. Prints one line of JSON.

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;

public class Behaviours {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    static SendReceipt send(Producer producer, String body, long delay) throws ClientException {
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic("T")
            .setBody(body.getBytes(StandardCharsets.UTF_8));
        if (delay > 0) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + delay);
        }
        return producer.send(builder.build());
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

    static MessageView next(SimpleConsumer consumer) throws ClientException {
        long end = System.currentTimeMillis() + 120_000;
        while (System.currentTimeMillis() < end) {
            List<MessageView> found = consumer.receive(1, Duration.ofSeconds(30));
            if (!found.isEmpty()) {
                return found.get(0);
            }
        }
        throw new IllegalStateException("nothing came");
    }

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[0]).setNamespace(arguments[1])
            .setCredentialProvider(
                new StaticSessionCredentialsProvider(arguments[2], arguments[3]))
            .setRequestTimeout(Duration.ofSeconds(30)).build();
        FilterExpression all = new FilterExpression("*");
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("T").build();

        SendReceipt delayed = send(producer, "recalled", 60_000);
        String recalled = producer.recallMessage("T", delayed.getRecallHandle()).getMessageId()
            .toString();

        SimpleConsumer simple = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup("simple")
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap("T", all)).build();
        send(producer, "twice", 0);
        MessageView first = next(simple);
        simple.changeInvisibleDuration(first, Duration.ofSeconds(1));
        MessageView second = next(simple);
        boolean stale = false;
        try {
            simple.ack(first);
        } catch (ClientException error) {
            stale = true;
        }
        simple.ack(second);
        simple.close();

        List<String> attempts = Collections.synchronizedList(new ArrayList<>());
        PushConsumer push = PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup("g")
            .setSubscriptionExpressions(Collections.singletonMap("T", all))
            .setMessageListener(view -> {
                if (!text(view).equals("poison")) {
                    return ConsumeResult.SUCCESS;
                }
                attempts.add(String.valueOf(view.getDeliveryAttempt()));
                return ConsumeResult.FAILURE;
            }).build();
        send(producer, "poison", 0);
        long end = System.currentTimeMillis() + 120_000;
        while (attempts.size() < 3 && System.currentTimeMillis() < end) {
            Thread.sleep(50);
        }
        Thread.sleep(1000);
        System.out.println("{\"recalled\":" + recalled.equals(delayed.getMessageId().toString())
            + ",\"deliveries\":[" + first.getDeliveryAttempt() + "," + second.getDeliveryAttempt()
            + "],\"stale\":" + stale + ",\"attempts\":[" + String.join(",", attempts) + "]}");
        // It waits for the answers to its long polls, which come with messages.
        CompletableFuture<Void> closed = CompletableFuture.runAsync(() -> close(push));
        while (!closed.isDone()) {
            send(producer, "closing", 0);
            Thread.sleep(50);
        }
        closed.get();
        producer.close();
        System.exit(0);
    }
}
