CREATE TABLE IF NOT EXISTS orders (
    id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    status ENUM('open', 'paid', 'cancelled') NOT NULL DEFAULT 'open'
);
