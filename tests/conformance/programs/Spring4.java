// Apache's Spring Boot starter for the classic client: a template sends in several ways, listeners
// hear and reply. Arguments: HOST:PORT of a name server. Prints one line of JSON.

import java.util.Set;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQReplyListener;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;

@Configuration(proxyBeanMethods = false)
@EnableAutoConfiguration
@Import({Spring4.Hearing.class, Spring4.Replying.class})
public class Spring4 {
    static final Set<String> HEARD = new ConcurrentSkipListSet<>();
    static final int WANTED = 4;

    @RocketMQMessageListener(topic = "T", selectorExpression = "A", consumerGroup = "hearing")
    public static class Hearing implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            HEARD.add(body);
        }
    }

    @RocketMQMessageListener(topic = "R", consumerGroup = "replying")
    public static class Replying implements RocketMQReplyListener<String, String> {
        @Override
        public String onMessage(String body) {
            return "re: " + body;
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("rocketmq.name-server", arguments[0]);
        System.setProperty("rocketmq.producer.group", "sending");
        System.setProperty("rocketmq.producer.send-message-timeout", "30000");
        System.setProperty("spring.main.banner-mode", "off");
        System.setProperty("logging.level.root", "error");
        ConfigurableApplicationContext context = SpringApplication.run(Spring4.class);
        RocketMQTemplate template = context.getBean(RocketMQTemplate.class);
        template.convertAndSend("T:A", "converted");
        boolean stored = template.syncSend("T:A", "sync").getSendStatus() == SendStatus.SEND_OK;
        template.syncSend("T:B", "another tag");
        CountDownLatch answered = new CountDownLatch(1);
        template.asyncSend("T:A", "async", new SendCallback() {
            @Override public void onSuccess(SendResult result) {
                answered.countDown();
            }

            @Override public void onException(Throwable error) {
                error.printStackTrace();
            }
        });
        template.syncSendOrderly("T:A", "orderly", "one");
        answered.await(60, TimeUnit.SECONDS);
        String reply = template.sendAndReceive("R", "request", String.class, 120_000);
        long end = System.currentTimeMillis() + 120_000;
        while (HEARD.size() < WANTED && System.currentTimeMillis() < end) {
            Thread.sleep(50);
        }
        System.out.printf("{\"stored\": %b, \"reply\": \"%s\", \"heard\": [%s]}%n", stored, reply,
            HEARD.stream().map(body -> '"' + body + '"').collect(Collectors.joining(", ")));
        System.exit(0);
    }
}
