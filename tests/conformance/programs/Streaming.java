// Apache's Java client: sends and consumes without end, while nodes die.
// Arguments: HOST:PORT[;HOST:PORT...]. Prints "ready" once messages come through; ends a while after
// its input does, with one line of JSON: how many were acknowledged, those of them that did not come,
// and how many sends failed.

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.producer.Producer;

public class Streaming {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    static String text(ByteBuffer body) {
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(3)).build();
        Set<Integer> received = new ConcurrentSkipListSet<>();
        PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup("g")
            .setSubscriptionExpressions(
                Collections.singletonMap("S", new FilterExpression("*")))
            .setMessageListener(view -> {
                received.add(Integer.parseInt(text(view.getBody())));
                return ConsumeResult.SUCCESS;
            }).build();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("S").build();
        AtomicBoolean over = new AtomicBoolean();
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    Thread.onSpinWait();
                }
            } catch (java.io.IOException error) {
                System.err.println(error);
            }
            over.set(true);
        });
        input.setDaemon(true);
        input.start();
        Set<Integer> acknowledged = new TreeSet<>();
        boolean ready = false;
        int failed = 0;
        for (int number = 0; !over.get(); number++) {
            try {
                producer.send(PROVIDER.newMessageBuilder().setTopic("S")
                    .setBody(Integer.toString(number).getBytes(StandardCharsets.UTF_8)).build());
                acknowledged.add(number);
            } catch (ClientException | RuntimeException error) {  // gRPC's own, too
                failed++;
                Thread.sleep(100);
            }
            Thread.sleep(5);
            if (!ready && acknowledged.size() > 50 && received.size() > 20) {
                ready = true;
                System.out.println("ready");
            }
        }
        long end = System.currentTimeMillis() + 90_000;
        while (!received.containsAll(acknowledged) && System.currentTimeMillis() < end) {
            Thread.sleep(100);
        }
        Set<Integer> missing = new TreeSet<>(acknowledged);
        missing.removeAll(received);
        System.out.println("{\"acknowledged\":" + acknowledged.size() + ",\"failed\":" + failed
            + ",\"missing\":"
            + missing.stream().map(String::valueOf).collect(Collectors.joining(",", "[", "]")) + "}");
        System.exit(0);
    }
}
