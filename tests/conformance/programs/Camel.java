// Apache Camel's component for RocketMQ: one route sends, another one hears.
// Arguments: HOST:PORT of a name server. Prints one line of JSON.

import java.util.Set;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.stream.Collectors;
import org.apache.camel.ProducerTemplate;
import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.impl.DefaultCamelContext;

public class Camel {
    static final Set<String> HEARD = new ConcurrentSkipListSet<>();
    static final int WANTED = 3;

    public static void main(String[] arguments) throws Exception {
        String server = arguments[0];
        try (DefaultCamelContext context = new DefaultCamelContext()) {
            context.addRoutes(new RouteBuilder() {
                @Override public void configure() {
                    from("rocketmq:T?consumerGroup=hearing&subscribeTags=A&namesrvAddr=" + server)
                        .process(exchange ->
                            HEARD.add(exchange.getMessage().getBody(String.class)));
                    from("direct:tagged").to("rocketmq:T?producerGroup=sending&sendTag=A"
                        + "&waitForSendResult=true&namesrvAddr=" + server);
                    from("direct:other").to("rocketmq:T?producerGroup=others&sendTag=B"
                        + "&waitForSendResult=true&namesrvAddr=" + server);
                }
            });
            context.start();
            ProducerTemplate template = context.createProducerTemplate();
            for (int number = 0; number < WANTED; number++) {
                template.sendBody("direct:other", "other" + number);
                template.sendBody("direct:tagged", "body" + number);
            }
            long end = System.currentTimeMillis() + 120_000;
            while (HEARD.size() < WANTED && System.currentTimeMillis() < end) {
                Thread.sleep(50);
            }
            System.out.println(HEARD.stream().map(body -> '"' + body + '"')
                .collect(Collectors.joining(", ", "{\"heard\": [", "]}")));
        }
        System.exit(0);
    }
}
