;; Lookups in a large hash table.
(let ((table (make-hash-table)) (keys (make-array 2000000)) (x 1) (sum 0) (i 0))
  (declare (fixnum x sum i))
  (dotimes (n 2000000) (setf x (mod (* x 48271) 2147483647)) (setf (gethash x table) n) (setf (aref keys n) x))
  (loop
    (dotimes (n 200000) (incf i) (setf sum (mod (+ sum (the fixnum (gethash (aref keys (mod (* i 7919) 2000000)) table))) 1000003)))
    (format t "+~%") (finish-output)))
