//! Runs that look stuck, and the services that are asked about them.
//!
//! covers: E1, E2

use std::{
    net::SocketAddr,
    pin::pin,
    sync::{Arc, Mutex},
};

use futures_util::future::{Either, select};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::{
    loops::{asks, turn},
    net::{Ask, CHAT, Upstream, asks as asks_model, eventually, run},
    support::{Config, Gateway},
};

/// A person who thinks: each question stays open until `answer` sends the answer to all.
struct Person {
    addr: SocketAddr,
    /// The ids of the runs that the questions were about.
    asked: Arc<Mutex<Vec<String>>>,
    /// How many questions the gateway dropped.
    dropped: Arc<Mutex<usize>>,
    answer: watch::Sender<Option<&'static str>>,
}

impl Person {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let person = Self {
            addr: listener.local_addr().unwrap(),
            asked: Arc::default(),
            dropped: Arc::default(),
            answer: watch::Sender::new(None),
        };
        let (asked, dropped) = (Arc::clone(&person.asked), Arc::clone(&person.dropped));
        let answer = person.answer.subscribe();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (asked, dropped) = (Arc::clone(&asked), Arc::clone(&dropped));
                tokio::spawn(Self::think(socket, asked, dropped, answer.clone()));
            }
        });
        person
    }

    async fn think(
        mut socket: TcpStream,
        asked: Arc<Mutex<Vec<String>>>,
        dropped: Arc<Mutex<usize>>,
        mut answer: watch::Receiver<Option<&'static str>>,
    ) {
        let mut read = Vec::new();
        let question: Value = loop {
            assert!(socket.read_buf(&mut read).await.unwrap() > 0);
            let text = String::from_utf8_lossy(&read).into_owned();
            let body = text.split_once("\r\n\r\n").map(|(_, body)| body);
            if let Some(Ok(question)) = body.map(serde_json::from_str) {
                break question;
            }
        };
        let run = question["snapshot"]["run"].as_str().unwrap().to_owned();
        asked.lock().unwrap().push(run);
        let answered = async { *answer.wait_for(Option::is_some).await.unwrap() };
        let answer = match select(pin!(socket.read_u8()), pin!(answered)).await {
            Either::Left(_) => None,
            Either::Right((answer, _)) => answer,
        };
        let Some(answer) = answer else {
            *dropped.lock().unwrap() += 1;
            return;
        };
        let body = json!(answer).to_string();
        let head = "HTTP/1.1 200 OK\r\ncontent-length:";
        let text = format!("{head} {}\r\n\r\n{body}", body.len());
        socket.write_all(text.as_bytes()).await.unwrap();
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// A service that answers everything with this JSON.
async fn service(answer: &Value) -> Upstream {
    let body = answer.to_string();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:";
    Upstream::bytes(format!("{head} {}\r\n\r\n{body}", body.len())).await
}

/// A gateway whose run asks for the same thing five times.
async fn stuck(watchdog: &str) -> (Upstream, Gateway) {
    let settings = format!("[loops]\n[watchdog]\n{watchdog}");
    let (upstream, gateway) = Config::new(settings).start_with_model(&["m"]).await;
    for times in 0..5 {
        assert_eq!(asks(&gateway, times).await.status, 200, "{times}");
    }
    // This request shows that the run is stuck: the service may end the run before its answer, or
    // while it is under way, which closes the connection.
    if let Ok(last) = turn(&gateway, 5).send().await {
        assert!([200, 422].contains(&last.status().as_u16()), "{last:?}");
    }
    (upstream, gateway)
}

#[test]
fn a_checker_sees_what_a_stuck_run_does_and_may_end_it() {
    run(async {
        let checker = service(&json!({"status": "looping", "reason": "it polls"})).await;
        let watchdog = format!("checker = \"http://{}/check\"\nends = true\n", checker.addr);
        let (_upstream, gateway) = stuck(&format!("{watchdog}excerpts = 9")).await;
        eventually(async || (gateway.reason("r-1").await == "stuck").then_some(())).await;

        let calls = checker.calls();
        assert_eq!((calls.len(), calls[0].uri.path()), (1, "/check"));
        let seen = calls[0].json();
        assert_eq!(
            (&seen["run"], &seen["stuck"]),
            (&json!("r-1"), &json!(true))
        );
        assert_eq!(seen["task"], "is the jo");
        let action = &seen["actions"][4];
        assert_eq!(
            (&action["name"], &action["excerpt"]),
            (&json!("job_status"), &json!("{\"job\":7}"))
        );
        let last = gateway.json("/runs/r-1").await["last_check"].clone();
        assert_eq!(
            (&last["status"], &last["reason"]),
            (&json!("looping"), &json!("it polls"))
        );
    });
}

#[test]
fn a_person_is_asked_and_may_stop_the_run() {
    run(async {
        let person = service(&json!("stop")).await;
        let question = format!("question = \"http://{}/ask\"", person.addr);
        let (_upstream, gateway) = stuck(&question).await;
        eventually(async || (gateway.reason("r-1").await == "stuck").then_some(())).await;
        let asked = person.calls()[0].json();
        let message = asked["message"].as_str().unwrap();
        assert!(
            message.contains("r-1") && message.contains("continue?"),
            "{message}"
        );
        let actions = asked["snapshot"]["actions"].as_array().unwrap();
        assert!(
            actions.iter().all(|action| action["excerpt"].is_null()),
            "not allowed"
        );
    });
}

#[test]
fn a_watchdog_that_only_observes_tells_what_it_would_do() {
    run(async {
        let checker = service(&json!({"status": "stuck"})).await;
        let keys = format!(
            "checker = \"http://{}/check\"\nends = true\nobserve = true",
            checker.addr
        );
        let settings = format!("[loops]\n[watchdog]\n{keys}");
        let (_upstream, gateway) = Config::new(settings).start_with_model(&["m"]).await;
        let mut events = gateway.get("/events").open().await;
        for times in 0..6 {
            asks(&gateway, times).await;
        }
        events.until("\"kind\":\"would_have_ended\"").await;
        assert_eq!(gateway.reason("r-1").await, Value::Null);
    });
}

#[test]
fn an_open_question_outlives_reloads_and_is_asked_once() {
    run(async {
        let (person, upstream) = (Person::start().await, Upstream::model().await);
        let settings = format!(
            "[run]\nmax_output_tokens = 20\nask_at = 0.1\n\
             [watchdog]\nquestion = \"http://{}/ask\"",
            person.addr
        );
        let config = |settings: &str| Config::new(settings).candidates(&["m"], upstream.addr);
        let (gateway, file) = config(&settings).start_with_file().await;
        let near = async |id: &str| {
            let call = gateway
                .post(CHAT, asks_model("m", true))
                .header("x-run-id", id);
            assert_eq!(call.ask().await.status, 200);
        };
        near("r-1").await;
        eventually(async || (person.asked() == ["r-1"]).then_some(())).await;

        // The same again, then without a watchdog, then with one.
        for (count, settings) in [&*settings, "", &*settings].into_iter().enumerate() {
            file.replace(&config(settings));
            gateway.signal("HUP");
            let reloaded = || gateway.log().matches("configuration reloaded").count();
            eventually(async || (reloaded() > count).then_some(())).await;
        }
        near("r-2").await;
        eventually(async || person.asked().contains(&"r-2".to_owned()).then_some(())).await;
        assert_eq!(person.asked(), ["r-1", "r-2"]);
        assert_eq!(*person.dropped.lock().unwrap(), 0);

        person.answer.send_replace(Some("stop"));
        for id in ["r-1", "r-2"] {
            let ended =
                || async { (gateway.reason(id).await == "token_cap_reached").then_some(()) };
            eventually(ended).await;
        }
    });
}
