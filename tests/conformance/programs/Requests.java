// Apache's classic client asks and is answered: request and reply in three ways, and a reply that
// comes too late. Arguments: HOST:PORT of a name server, whether requests that wait for their reply
// work: those of 5.3.1 to 5.3.3 end as soon as they are sent. Prints one line of JSON.

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class Requests {
    static final int WAIT_MS = 50_000, LATE_MS = 5_000;

    static Message message(String body) {
        return new Message("T", body.getBytes(StandardCharsets.UTF_8));
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static DefaultMQProducer producer(String server, String name) throws Exception {
        DefaultMQProducer made = new DefaultMQProducer(name);
        made.setInstanceName(name); // a client of its own, as in another process
        made.setNamesrvAddr(server);
        made.setSendMsgTimeout(30_000);
        made.setHeartbeatBrokerInterval(500); // replies find whoever is known
        made.start();
        return made;
    }

    interface Request {
        void send(RequestCallback callback) throws Exception;
    }

    static String reply(Request request) throws Exception {
        CountDownLatch came = new CountDownLatch(1);
        AtomicReference<String> found = new AtomicReference<>("");
        request.send(new RequestCallback() {
            @Override public void onSuccess(Message reply) {
                if (reply != null) { // it is called when the request was sent, too
                    found.set(text(reply));
                    came.countDown();
                }
            }

            @Override public void onException(Throwable error) {
                found.set(error.toString());
                came.countDown();
            }
        });
        came.await(WAIT_MS, TimeUnit.MILLISECONDS);
        return found.get();
    }

    public static void main(String[] arguments) throws Exception {
        String server = arguments[0];
        DefaultMQProducer replying = producer(server, "replying"), asking = producer(server, "asking");
        AtomicReference<SendResult> replied = new AtomicReference<>();
        AtomicReference<String> late = new AtomicReference<>("");
        CountDownLatch refused = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("answering");
        consumer.setNamesrvAddr(server);
        consumer.setInstanceName("answering");
        consumer.setHeartbeatBrokerInterval(500); // on a slow machine the first may come too early
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("T", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt one : messages) {
                try {
                    if (text(one).equals("late")) {
                        asking.shutdown();
                    }
                    byte[] body = ("re: " + text(one)).getBytes(StandardCharsets.UTF_8);
                    replied.set(replying.send(MessageUtil.createReplyMessage(one, body), WAIT_MS));
                } catch (Exception error) {
                    if (!text(one).equals("late")) { // nobody is known yet: it comes again
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                    late.set(error + " " + error.getCause());
                    refused.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean waits = Boolean.parseBoolean(arguments[1]);
        String first = waits ? text(asking.request(message("one"), WAIT_MS))
            : reply(callback -> asking.request(message("one"), callback, WAIT_MS));
        MessageQueueSelector second = (queues, message, argument) -> queues.get((Integer) argument);
        String queue = waits ? text(asking.request(message("two"), second, 1, WAIT_MS))
            : reply(callback -> asking.request(message("two"), second, 1, callback, WAIT_MS));
        String called = reply(callback -> asking.request(message("three"), callback, WAIT_MS));
        String stored = replied.get() == null ? "" : replied.get().getMessageQueue().getTopic();
        String gone = "";
        try {
            asking.request(message("late"), LATE_MS);
        } catch (RequestTimeoutException | MQClientException error) {
            // The second where it was closed before it had the answer to its send.
            gone = "timeout";
        }
        refused.await(WAIT_MS, TimeUnit.MILLISECONDS);
        consumer.shutdown();
        replying.shutdown();
        System.out.printf("{\"replies\": [\"%s\", \"%s\", \"%s\"], \"stored\": \"%s\", "
            + "\"gone\": \"%s\", \"late\": %b}%n", first, queue, called, stored, gone,
            late.get().contains("push reply message"));
        System.exit(0);
    }
}
