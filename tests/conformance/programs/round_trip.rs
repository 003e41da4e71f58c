// Apache's Rust client: sends every kind of message and consumes it with simple consumers.
// Arguments: HOST:PORT. Prints one line of JSON: the bodies that came, and those that came in order.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

fn client() -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(std::env::args().nth(1).unwrap());
    option.set_enable_tls(false);
    option.set_timeout(Duration::from_secs(30));
    option
}

async fn consume(group: &str, topic: &str, wanted: usize) -> Vec<String> {
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![topic]);
    option.set_consumer_group(group);
    let mut settings = client();
    settings.set_long_polling_timeout(Duration::from_secs(5));
    let mut consumer = SimpleConsumer::new(option, settings).unwrap();
    consumer.start().await.unwrap();
    let all = FilterExpression::new(FilterType::Tag, "A");
    let mut found = Vec::new();
    let end = SystemTime::now() + Duration::from_secs(120);
    while found.len() < wanted && SystemTime::now() < end {
        for message in consumer.receive(topic, &all).await.unwrap() {
            consumer.ack(&message).await.unwrap();
            found.push(String::from_utf8(message.body().to_vec()).unwrap());
        }
    }
    consumer.shutdown().await.unwrap();
    found
}

fn json(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| format!("\"{text}\"")).collect();
    format!("[{}]", quoted.join(","))
}

#[tokio::main]
async fn main() {
    let mut option = ProducerOption::default();
    option.set_topics(vec!["T", "Fifo"]);
    // A client that stands still is also asked about what it is about to decide.
    let checker = Box::new(|_: String, view: rocketmq::model::message::MessageView| {
        match view.body() {
            b"rolled back" => TransactionResolution::ROLLBACK,
            _ => TransactionResolution::COMMIT,
        }
    });
    let mut producer = Producer::new_transaction_producer(option, client(), checker).unwrap();
    producer.start().await.unwrap();
    for k in 0..3 {
        let message = MessageBuilder::builder()
            .set_topic("T").set_tag("A").set_body(format!("normal{k}").into_bytes());
        producer.send(message.build().unwrap()).await.unwrap();
    }
    for k in 0..5 {
        let body = format!("fifo{k}").into_bytes();
        let message = MessageBuilder::fifo_message_builder("Fifo", body, "one").set_tag("A");
        producer.send(message.build().unwrap()).await.unwrap();
    }
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 + 2;
    let delayed = MessageBuilder::delay_message_builder("T", b"delayed".to_vec(), at).set_tag("A");
    producer.send(delayed.build().unwrap()).await.unwrap();
    for (body, commit) in [("committed", Some(true)), ("rolled back", Some(false)), ("asked", None)] {
        let half = MessageBuilder::transaction_message_builder("T", body.as_bytes().to_vec())
            .set_tag("A").build().unwrap();
        let transaction = producer.send_transaction_message(half).await.unwrap();
        match commit {
            Some(true) => transaction.commit().await.unwrap(),
            Some(false) => transaction.rollback().await.unwrap(),
            None => (),
        }
    }
    let mut received = consume("g-rust", "T", 6).await;
    received.sort();
    let ordered = consume("fifo", "Fifo", 5).await;
    println!("{{\"received\":{},\"ordered\":{}}}", json(&received), json(&ordered));
    std::process::exit(0);
}
