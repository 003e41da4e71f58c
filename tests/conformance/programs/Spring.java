// Apache's Spring Boot starter: a template sends every kind of message, a listener hears them.
// Arguments: HOST:PORT of a TLS port (listeners know no other), access key, secret key. Prints one
// line of JSON: the bodies that came.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Set;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.annotation.RocketMQMessageListener;
import org.apache.rocketmq.client.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.core.RocketMQClientTemplate;
import org.apache.rocketmq.client.core.RocketMQListener;
import org.apache.rocketmq.client.core.RocketMQTransactionChecker;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;

@Configuration(proxyBeanMethods = false)
@EnableAutoConfiguration
@Import({Spring.Hearing.class, Spring.Checking.class})
public class Spring {
    static final Set<String> HEARD = new ConcurrentSkipListSet<>();
    static final int WANTED = 6;

    @RocketMQMessageListener(endpoints = "${endpoints}", topic = "T", tag = "A",
        consumerGroup = "g", accessKey = "${ak}", secretKey = "${sk}")
    public static class Hearing implements RocketMQListener {
        @Override
        public ConsumeResult consume(MessageView view) {
            HEARD.add(StandardCharsets.UTF_8.decode(view.getBody()).toString());
            return ConsumeResult.SUCCESS;
        }
    }

    @RocketMQTransactionListener
    public static class Checking implements RocketMQTransactionChecker {
        @Override
        public TransactionResolution check(MessageView view) {
            // A client that stands still is also asked about what it is about to decide.
            return StandardCharsets.UTF_8.decode(view.getBody()).toString().equals("rolled back")
                ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("endpoints", arguments[0]);
        System.setProperty("ak", arguments[1]);
        System.setProperty("sk", arguments[2]);
        System.setProperty("rocketmq.producer.endpoints", arguments[0]);
        System.setProperty("rocketmq.producer.topic", "T");
        System.setProperty("rocketmq.producer.access-key", arguments[1]);
        System.setProperty("rocketmq.producer.secret-key", arguments[2]);
        System.setProperty("rocketmq.producer.request-timeout", "30");
        System.setProperty("spring.main.banner-mode", "off");
        System.setProperty("logging.level.root", "error");
        ConfigurableApplicationContext context = SpringApplication.run(Spring.class);
        RocketMQClientTemplate template = context.getBean(RocketMQClientTemplate.class);
        for (int k = 0; k < 3; k++) {
            template.syncSendNormalMessage("T:A", "normal" + k);
        }
        template.syncSendDelayMessage("T:A", "delayed", Duration.ofSeconds(2));
        template.syncSendFifoMessage("T:A", "ordered", "one");
        template.sendMessageInTransaction("T:A", "committed").getTransaction().commit();
        template.sendMessageInTransaction("T:A", "rolled back").getTransaction().rollback();
        long end = System.currentTimeMillis() + 120_000;
        while (HEARD.size() < WANTED && System.currentTimeMillis() < end) {
            Thread.sleep(50);
        }
        System.out.println(HEARD.stream().map(body -> '"' + body + '"')
            .collect(Collectors.joining(",", "{\"received\":[", "]}")));
        // An end in order would wait for answers to the listener's long polls.
        Runtime.getRuntime().halt(0);
    }
}
