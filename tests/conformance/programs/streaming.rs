// Apache's Rust client: sends and consumes without end, while nodes die.
// Arguments: HOST:PORT[;HOST:PORT...]. Prints "ready" once messages come through; ends a while after
// its input does, with one line of JSON: how many were acknowledged, those of them that did not come,
// and how many sends failed.

use std::collections::BTreeSet;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::{Producer, SimpleConsumer};

fn client() -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(std::env::args().nth(1).unwrap().replace(';', ","));
    option.set_enable_tls(false);
    option.set_long_polling_timeout(Duration::from_secs(5));
    option
}

#[tokio::main]
async fn main() {
    let received = Arc::new(Mutex::new(BTreeSet::new()));
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec!["S"]);
    option.set_consumer_group("g");
    let mut consumer = SimpleConsumer::new(option, client()).unwrap();
    consumer.start().await.unwrap();
    let heard = received.clone();
    tokio::spawn(async move {
        let all = FilterExpression::new(FilterType::Tag, "*");
        loop {
            match consumer.receive("S", &all).await {
                Ok(messages) => {
                    for message in messages {
                        let number: u64 = String::from_utf8_lossy(message.body()).parse().unwrap();
                        heard.lock().unwrap().insert(number);
                        let _ = consumer.ack(&message).await;
                    }
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    });
    let mut option = ProducerOption::default();
    option.set_topics(vec!["S"]);
    let mut producer = Producer::new(option, client()).unwrap();
    producer.start().await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let ended = over.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ended.store(true, Ordering::SeqCst);
    });
    let mut acknowledged = BTreeSet::new();
    let (mut ready, mut failed) = (false, 0);
    let mut number = 0u64;
    while !over.load(Ordering::SeqCst) {
        let message = MessageBuilder::builder().set_topic("S").set_body(number.to_string().into_bytes());
        match producer.send(message.build().unwrap()).await {
            Ok(_) => {
                acknowledged.insert(number);
            }
            Err(error) => {
                failed += 1;
                eprintln!("{error:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        if !ready && acknowledged.len() > 50 && received.lock().unwrap().len() > 20 {
            ready = true;
            println!("ready");
        }
        number += 1;
    }
    let end = Instant::now() + Duration::from_secs(90);
    while !acknowledged.is_subset(&received.lock().unwrap()) && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let missing: Vec<u64> = acknowledged.difference(&received.lock().unwrap()).copied().collect();
    println!(
        "{{\"acknowledged\":{},\"failed\":{failed},\"missing\":{missing:?}}}",
        acknowledged.len(),
    );
    std::process::exit(0);
}
