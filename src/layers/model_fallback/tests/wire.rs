use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::{BODY, elsewhere, post};

/// An attempt as the HTTP client writes it.
#[tokio::test]
async fn a_patched_body_goes_out_with_its_length() {
    let headers = [("transfer-encoding", "chunked"), ("host", "gateway")];
    let original = post("/v1/responses", &headers, BODY);
    let request = elsewhere().request(&mut original.clone(), None).unwrap();
    let (client, mut server) = duplex(4096);
    let (mut sender, connection) = http1::handshake(TokioIo::new(client)).await.unwrap();

    let upstream = async {
        let mut sent = String::new();
        while !sent.ends_with("]}") {
            let mut bytes = [0; 512];
            let read = server.read(&mut bytes).await.unwrap();
            sent.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
        }
        let answer = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
        server.write_all(answer).await.unwrap();
        sent
    };
    let (sent, answer, _) = tokio::join!(upstream, sender.send_request(request), connection);

    assert_eq!(answer.unwrap().status(), 204);
    let (head, body) = sent.split_once("\r\n\r\n").unwrap();
    let body_sent = BODY.replace("asked", "served");
    assert_eq!(body, body_sent);
    assert!(head.contains(&format!("content-length: {}", body_sent.len())));
    assert!(!head.contains("chunked") && !head.contains("gateway"));
}
