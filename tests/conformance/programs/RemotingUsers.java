// Apache's classic client with signatures (ACL 1.0): a user with rights, one without, and nobody.
// Arguments: HOST:PORT of a name server, name and password of a user with rights to T, X and g, and
// those of a user who may only read T. Prints one line of JSON.

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

public class RemotingUsers {
    static final int HEARTBEAT_MS = 500; // a producer is known, and checks come, with its first
    static final int SEND_MS = 30_000;
    static String server;

    static RPCHook signs(String name, String password) {
        return new AclClientRPCHook(new SessionCredentials(name, password));
    }

    static Message message(String topic, String body) {
        Message made = new Message(topic, "tag", body.getBytes(StandardCharsets.UTF_8));
        made.setKeys("key-" + body);
        return made;
    }

    static String body(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    // Clients with one instance name share their connections, and the signature of the first.
    static DefaultMQProducer producer(String name, RPCHook hook) throws Exception {
        DefaultMQProducer made = new DefaultMQProducer("producers", hook);
        made.setInstanceName(name);
        made.setNamesrvAddr(server);
        made.setSendMsgTimeout(SEND_MS);
        made.setRetryTimesWhenSendFailed(0);
        made.start();
        return made;
    }

    // A first handshake may take longer than a client waits for its first answer.
    static void known(DefaultMQProducer producer, String topic) throws Exception {
        until(() -> {
            try {
                return !producer.fetchPublishMessageQueues(topic).isEmpty();
            } catch (MQClientException error) {
                return false;
            }
        });
    }

    static String refused(DefaultMQProducer producer) {
        try {
            producer.send(message("T", "unwanted"));
            return "stored";
        } catch (MQClientException error) { // also of what a broker refuses, after its attempts
            return error.getCause() instanceof MQBrokerException
                ? error.getResponseCode() + " " + ((MQBrokerException) error.getCause()).getErrorMessage()
                : error.getErrorMessage().split("[,\n]")[0];
        } catch (Exception error) {
            return error.getClass().getSimpleName();
        }
    }

    static DefaultMQPushConsumer consumer(
            String name, String group, String topic, RPCHook hook, Set<String> seen) throws Exception {
        AtomicInteger failures = new AtomicInteger();
        DefaultMQPushConsumer made =
            new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
        made.setInstanceName(name);
        made.setNamesrvAddr(server);
        made.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        made.subscribe(topic, "*");
        made.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt one : messages) {
                if (body(one).equals("body3") && failures.getAndIncrement() == 0) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                seen.add(body(one) + (one.getReconsumeTimes() > 0 ? " again" : ""));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        made.start();
        return made;
    }

    static TransactionMQProducer transactions(RPCHook hook) throws Exception {
        TransactionMQProducer made = new TransactionMQProducer("transactions", hook);
        made.setInstanceName("transactions");
        made.setNamesrvAddr(server);
        made.setSendMsgTimeout(SEND_MS);
        made.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        made.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message one, Object state) {
                return (LocalTransactionState) state;
            }

            @Override public LocalTransactionState checkLocalTransaction(MessageExt one) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        made.start();
        return made;
    }

    static void until(java.util.function.BooleanSupplier done) throws Exception {
        long end = System.currentTimeMillis() + 120_000;
        while (!done.getAsBoolean() && System.currentTimeMillis() < end) {
            Thread.sleep(20);
        }
    }

    public static void main(String[] arguments) throws Exception {
        server = arguments[0];
        RPCHook alice = signs(arguments[1], arguments[2]), bob = signs(arguments[3], arguments[4]);
        Set<String> seen = Collections.synchronizedSet(new TreeSet<>());
        Set<String> paid = Collections.synchronizedSet(new TreeSet<>());
        Set<String> stolen = Collections.synchronizedSet(new TreeSet<>());
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        DefaultMQProducer sending = producer("sender", alice);
        known(sending, "T");
        consumers.add(consumer("reader", "g", "T", alice, seen));
        consumers.add(consumer("payer", "g2", "X", alice, paid));
        consumers.add(consumer("thief", "g", "T", bob, stolen));
        SendResult last = null;
        for (int k = 0; k < 5; k++) {
            last = sending.send(message("T", "body" + k));
        }
        List<Message> batch = new ArrayList<>();
        for (int k = 5; k < 8; k++) {
            batch.add(message("T", "body" + k));
        }
        sending.send(batch);
        TransactionMQProducer deciding = transactions(alice);
        known(deciding, "X");
        deciding.sendMessageInTransaction(message("X", "committed"), LocalTransactionState.COMMIT_MESSAGE);
        deciding.sendMessageInTransaction(message("X", "asked"), LocalTransactionState.UNKNOW);
        DefaultMQProducer readsOnly = producer("reads-only", bob);
        known(readsOnly, "T");
        String byReader = refused(readsOnly);
        String byWrong = refused(producer("wrong", signs(arguments[1], "wrong")));
        String byNobody = refused(producer("nobody", null));
        until(() -> seen.size() == 8 && paid.size() == 2);
        long now = System.currentTimeMillis() + 60_000;
        String found = body(sending.queryMessage("T", "key-body2", 10, 0, now).getMessageList().get(0));
        String viewed = body(sending.viewMessage("T", last.getMsgId()));
        System.out.printf(
            "{\"seen\": \"%s\", \"paid\": \"%s\", \"stolen\": %d, \"found\": \"%s %s\", "
            + "\"reader\": \"%s\", \"wrong\": \"%s\", \"nobody\": \"%s\"}%n",
            String.join(" ", seen), String.join(" ", paid), stolen.size(), found, viewed,
            byReader, byWrong, byNobody);
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        sending.shutdown();
        deciding.shutdown();
        System.exit(0);
    }
}
